"""Interactive queries: committed rows of stores, rows in memory, and change feeds."""
