"""The commands `headrace store`: list stores, and read their rows beside the workers."""
