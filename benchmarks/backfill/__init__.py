"""Backfills compared with Spark SQL, and their handover with a hand-written producer."""
