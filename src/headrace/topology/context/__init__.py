"""Runtime context of an operator."""
