"""The command `headrace backfill`."""
