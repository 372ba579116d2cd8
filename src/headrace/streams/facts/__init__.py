"""What can be told of a worker in numbers: plain counters, and snapshots that any thread reads."""
