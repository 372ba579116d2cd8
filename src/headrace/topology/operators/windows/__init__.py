"""What runs of windows and sessions, and of what waits for their ends."""
