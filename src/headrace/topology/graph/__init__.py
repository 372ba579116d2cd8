"""Nodes, sub-topologies, the draft that grows, the optimiser, and default serdes put in."""
