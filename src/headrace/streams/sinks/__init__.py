"""Sinks that come along: tables and files outside of Kafka, one kind a file."""
