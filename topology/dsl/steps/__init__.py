"""What a call of the DSL adds to the graph, one file an operator."""
