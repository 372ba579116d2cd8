"""The loop of a worker: polling, commits, membership, maintenance, uncaught errors."""
