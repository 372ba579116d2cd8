"""Records in order, and in packs."""
