"""Handover of state, outputs and offsets to the application, exactly once."""
