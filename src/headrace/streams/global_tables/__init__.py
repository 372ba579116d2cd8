"""Tables whose rows are all everywhere."""
