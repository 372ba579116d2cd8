"""Sinks and sources outside of Kafka, with a module for each kind."""
