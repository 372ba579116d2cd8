"""Plan of a backfill, and how a plan is identified."""
