"""The context of an operator at run time."""
