"""Cluster, processes and resource usage of benchmarks."""
