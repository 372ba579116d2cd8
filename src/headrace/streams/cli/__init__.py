"""Command line: a module for each command."""
