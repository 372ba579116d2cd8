"""The tasks of one worker: what they begin from, their restore, and what they read."""
