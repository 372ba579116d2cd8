"""Spark's stages and tasks, and what is said of those that fail."""
