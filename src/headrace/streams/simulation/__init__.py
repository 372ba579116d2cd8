"""Deterministic simulation; its public names are in `headrace.simulation`."""
