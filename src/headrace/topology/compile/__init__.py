"""Compiler from a sub-topology to Python source."""
