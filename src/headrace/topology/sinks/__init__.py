"""What leaves a topology for tables outside of Kafka: the step, and records as rows."""
