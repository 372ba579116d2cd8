"""What a call of the DSL adds to the graph, one file for a kind of call."""
