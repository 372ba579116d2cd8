"""Comparisons of Headrace with Kafka Streams, Quix and hand-written consumers; microbenchmarks."""
