"""The nodes that each DSL call adds to the graph."""
