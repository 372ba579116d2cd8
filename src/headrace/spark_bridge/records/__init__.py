"""Records in their order, and in packs."""
