"""Hot paths on records in memory, beside plain Python that does the same."""
