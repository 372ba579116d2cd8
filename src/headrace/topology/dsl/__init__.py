"""The DSL: streams, tables, grouped and windowed streams."""
