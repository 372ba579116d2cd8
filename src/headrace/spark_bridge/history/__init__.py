"""Sources of history: Kafka, archives, files."""
