"""Jobs: their inputs, expected outputs and topologies."""
