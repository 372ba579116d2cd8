"""Operators that run as objects, and their specs; each file has an operator.

Operators are pure: they receive a record's key, value, timestamp and headers, and use their stores.
They know no offsets, no partitions and no wall clock, so all runners share them.
"""
