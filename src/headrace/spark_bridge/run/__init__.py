"""Tasks on Spark, and the checks before they run."""
