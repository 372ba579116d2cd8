"""What the runtime asks of Kafka and of time, and the facts that it gets: protocols and values."""
