"""The loop of one worker, and how it is wired."""
