"""Telling a running `headrace run` what to do: by a socket beside its state."""
