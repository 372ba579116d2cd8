"""Stages and tasks on Spark, and their errors."""
