"""Microbenchmarks of hot paths on records in memory, compared with equivalent plain Python."""
