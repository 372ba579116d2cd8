"""Operators that are objects: made for one task, and the lines that hand records to them."""
