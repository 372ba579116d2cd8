"""Headrace beside loops written by hand: throughput, latency, restart, and the hot paths alone."""
