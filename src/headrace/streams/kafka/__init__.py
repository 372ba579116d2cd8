"""Kafka clients, the protocols that the runtime uses, and the meaning of client errors."""
