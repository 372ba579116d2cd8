"""Plan of a backfill, and the program that executors receive."""
