"""What runs of joins, one file a join."""
