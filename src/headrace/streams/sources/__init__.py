"""Rows from elsewhere into topics: read again from where they were committed, each of them once."""
