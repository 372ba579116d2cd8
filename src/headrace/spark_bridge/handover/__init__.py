"""State, outputs and offsets become the application's, exactly once."""
