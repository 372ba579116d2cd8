"""What benchmarks stand on: the cluster, processes, and what they cost."""
