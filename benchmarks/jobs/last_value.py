"""The last value of each key, for latency and restarts."""

from __future__ import annotations

from benchmarks.jobs.job import topic
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def last_value(source: str, output: str) -> Topology:
    """Keep and forward the last value of each key."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .group_by_key()
        .reduce(lambda _, value: value, store="last")
        .to_stream()
        .to(output)
    )
    return builder.build()
