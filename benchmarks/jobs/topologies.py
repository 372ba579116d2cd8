"""The jobs as topologies: the three that are compared, and one for latency and restarts."""

from __future__ import annotations

from headrace import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def word_count(source: str, output: str) -> Topology:
    """Count words: sentences to words, words through a repartition topic to counts."""
    builder = StreamsBuilder()
    (
        builder.stream(source, value=serdes.string)
        .flat_map_values(str.split)
        .group_by(lambda _, w: w, key=serdes.string, value=serdes.string, name="by-word")
        .count(store="counts")
        .to_stream()
        .to(output)
    )
    return builder.build()


def running_sum(source: str, output: str) -> Topology:
    """Add up the amounts of each key."""
    builder = StreamsBuilder()
    (
        builder.stream(source)
        .group_by_key()
        .aggregate(lambda: 0, lambda _, booking, total: total + booking["amount"], store="sums")
        .to_stream()
        .to(output)
    )
    return builder.build()


def stateless(source: str, output: str) -> Topology:
    """Parse, keep what is paid, and write another document."""
    builder = StreamsBuilder()
    (
        builder.stream(source)
        .filter(lambda _, order: order["paid"])
        .map_values(lambda o: {"total": o["price"] * o["quantity"], "user": o["user"]})
        .to(output)
    )
    return builder.build()


def last_value(source: str, output: str) -> Topology:
    """Keep the last value of each key, and write it on."""
    builder = StreamsBuilder()
    (
        builder.stream(source)
        .group_by_key()
        .reduce(lambda _, value: value, store="last")
        .to_stream()
        .to(output)
    )
    return builder.build()


TOPOLOGIES = {
    "word_count": word_count,
    "sum": running_sum,
    "stateless": stateless,
    "last_value": last_value,
}
