"""Questions to a worker about rows in its memory: asked by others, answered between batches."""
