"""Headrace beside Kafka Streams, Quix and loops by hand, and its hot paths alone."""
