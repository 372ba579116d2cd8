"""Counters and snapshots of a worker that any thread can read."""
