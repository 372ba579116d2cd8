"""Tasks of a worker: input, processing, failures, restore, global tables, async I/O."""
