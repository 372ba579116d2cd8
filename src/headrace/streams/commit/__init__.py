"""Making what tasks have done last, all at once."""
