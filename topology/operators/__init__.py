"""One module per kind of operator: how it becomes lines of the generated batch function.

Operators are pure: they see a record's key, value, timestamp and headers, and their stores. They
know no offsets, no partitions and no wall clock, so every runner can share them.
"""
