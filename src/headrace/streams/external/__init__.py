"""Tables outside of Kafka: where their tasks begin, and how their rows are written."""
