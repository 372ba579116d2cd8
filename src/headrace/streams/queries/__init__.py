"""Queries: the committed rows of an application's stores, read beside its workers."""
