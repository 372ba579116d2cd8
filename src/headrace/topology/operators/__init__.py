"""What runs of steps with state, and what steps say of themselves: one file for a kind.

Operators are pure: they see a record's key, value, timestamp and headers, and their stores. They
know no offsets, no partitions and no wall clock, so every runner can share them.
"""
