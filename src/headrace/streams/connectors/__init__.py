"""Sinks and sources outside of Kafka, one module per kind."""
