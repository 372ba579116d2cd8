"""Functions that add the nodes of each DSL call to the graph."""
