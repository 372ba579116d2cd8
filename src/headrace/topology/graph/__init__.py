"""Nodes, sub-topologies, the draft of a graph, the optimizer, and default serdes."""
