"""Where records of the past come from: Kafka, archives, files."""
