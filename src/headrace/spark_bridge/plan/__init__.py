"""What a backfill is going to read and make, and how a plan is known again."""
