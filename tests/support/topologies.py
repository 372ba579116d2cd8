"""Topologies that several tests run."""

from __future__ import annotations

from headrace.topology import StreamsBuilder, Topology, serdes

EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
NO_CACHE = {**EXACTLY_ONCE, "statestore.cache.max.bytes": 0}


def word_count() -> Topology:
    """Lines in, counts of words out; a repartition topic between."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serdes.string, value=serdes.string)
    words = lines.flat_map_values(str.split)
    grouped = words.group_by(
        lambda _, word: word, key=serdes.string, value=serdes.string, name="by-word"
    )
    grouped.count(store="counts").to_stream().to("word-counts")
    return builder.build()


def key_count() -> Topology:
    """Counts records by the key that they have."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()
