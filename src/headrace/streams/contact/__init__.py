"""Reaching a cluster: who answers, who is refused, and what is said of it."""
