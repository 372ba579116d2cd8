"""Tasks: their life, their restore, their commit, and what they read."""
