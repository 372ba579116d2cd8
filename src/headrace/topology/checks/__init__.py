"""Checks of a topology before it runs: loops, keys that cannot match, missing names."""
