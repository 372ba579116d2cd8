"""Backfills beside Spark SQL, and their hand-over beside a loop."""
