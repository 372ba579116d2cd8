"""A topology as text and as a picture."""
