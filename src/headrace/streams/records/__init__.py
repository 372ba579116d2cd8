"""What becomes of a record that fails."""
