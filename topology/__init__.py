"""What to compute: the DSL, the graph, the optimiser, the compiler. No Kafka, no RocksDB."""
