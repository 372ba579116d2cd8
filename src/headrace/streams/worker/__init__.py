"""The loop of one worker: polling, commits, membership, maintenance, uncaught errors."""
