"""A task's directory and its lock."""
