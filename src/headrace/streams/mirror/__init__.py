"""Copies of topics in another cluster, each record once, and consumer groups moved there."""
