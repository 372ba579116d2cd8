"""Tasks of one worker: input, processing, failures, restore, global tables, async I/O."""
