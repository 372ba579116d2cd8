"""What to compute: the DSL, the graph, the optimiser and the compiler. Pure: no Kafka, no RocksDB."""
