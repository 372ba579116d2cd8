"""Rewrites of a topology that keep its results: plain functions from topology to topology.

`BY_NAME` has them in the order in which they are applied, by their names in the setting
``topology.optimization``. Each rewrite is independent of the others and returns the topology itself
if it does not apply. ``optimize(topology).describe()`` shows their effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from headrace.topology.graph.combinable import folds_of
from headrace.topology.graph.fold import Combining
from headrace.topology.graph.graph import (
    G,
    Graph,
    Node,
    Sink,
    SourceNode,
    by_name,
)


class Rewrite(Protocol):
    """Function that returns another graph of the same computation."""

    def __call__(self, topology: G, /) -> G:
        """Return the rewritten graph, of the same class."""


def share_repartitions(topology: G) -> G:
    """Merge repartition topics that carry the same records into the first of them.

    Two aggregations of an unnamed grouped stream write two topics with the same keys and values.
    The first topic keeps its name; readers of the other topics read it, too (Kafka Streams:
    ``merge.repartition.topics``).

    >>> from headrace import StreamsBuilder, serdes
    >>> builder = StreamsBuilder()
    >>> grouped = builder.stream("in").group_by(lambda key, value: value)
    >>> _, _ = grouped.count(store="a"), grouped.reduce(max, store="b")
    >>> topology = builder.build()
    >>> len(topology.sub_topologies), len(share_repartitions(topology).sub_topologies)
    (3, 2)
    """
    nodes = by_name(topology.nodes)
    sinks = {sink.topic: sink for sink in topology.sinks if sink.internal}
    first: dict[Any, SourceNode] = {}
    merged: set[str] = set()
    replacements: dict[str, str] = {}
    for source in topology.sources:
        if not source.internal:
            continue
        sink = sinks[source.topics[0]]
        origin, removed = _origin(nodes, sink)
        same = (origin, sink.key, sink.value, source.partitions)
        kept_source = first.setdefault(same, source)
        if kept_source is not source:
            merged |= {*removed, sink.name, source.name}
            replacements[source.name] = kept_source.name
    if not merged:
        return topology
    rest = [_reading(node, replacements) for node in topology.nodes if node.name not in merged]
    return replace(topology, nodes=tuple(rest))


def reuse_table_sources(topology: G) -> G:
    """Use the source topic of a table as its changelog, if its rows can be restored from it.

    The topic must keep the last record of each key. A table is not changed if a timestamp extractor
    is set or if it starts at the end of the topic, because its rows could not be restored from
    there (Kafka Streams: ``reuse.ktable.source.topics``).

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> _ = builder.table("prices", store="prices")
    >>> [store.source_topic for store in reuse_table_sources(builder.build()).stores]
    ['prices']
    """
    nodes = by_name(topology.nodes)
    topics: dict[str, str] = {}
    for node in topology.nodes:
        store = node.copies_into
        if store is not None and len(node.parents) == 1:
            source = nodes[node.parents[0]].as_source
            if source is not None and _can_restore(source):
                (topic,) = source.topics
                if topic not in topics.values():
                    topics[store] = topic
    stores = tuple(
        replace(store, source_topic=topics[store.name])
        if store.name in topics and store.spec.logged
        else store
        for store in topology.stores
    )
    return topology if stores == topology.stores else replace(topology, stores=stores)


def combine_before_repartition(topology: G) -> G:
    """Pre-aggregate the records of a key before they are written to a repartition topic.

    The task that would write the records keeps the partial aggregates in memory until the next
    commit, or only briefly with at-least-once processing. Then it writes one record per key.
    `folds_of` has the conditions.

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in").group_by(lambda key, value: value).count(store="counts")
    >>> topology = combine_before_repartition(builder.build())
    >>> [sink.combines.fold for sink in topology.sinks if sink.combines is not None]
    [Counting()]
    """
    return combining(topology, combinable(topology))


def count_before_repartition(topology: G) -> G:
    """Pre-aggregate counts only, for handlers that skip: a failing partial has many records."""
    folds = combinable(topology)
    counts = {topic: folds[topic] for topic in folds if not folds[topic].fold.asks_user}
    return combining(topology, counts)


def combinable(topology: Graph) -> Mapping[str, Combining]:
    return {
        seen.topic: seen.combining
        for seen in folds_of(topology)
        if seen.topic is not None and seen.combining is not None
    }


def combining(topology: G, folds: Mapping[str, Combining]) -> G:
    """Add pre-aggregation to the sinks of these repartition topics."""
    nodes = tuple(_combining(node, folds) for node in topology.nodes)
    return topology if nodes == topology.nodes else replace(topology, nodes=nodes)


def _combining(node: Node, folds: Mapping[str, Combining]) -> Node:
    sink = node.as_sink
    if sink is None or not sink.internal or sink.partitioner is not None:
        return node
    fold = folds.get(str(sink.topic))
    return node if fold is None else replace(sink, combines=fold)


def _can_restore(source: SourceNode) -> bool:
    plain = source.timestamps is None and source.offset_reset in (None, "earliest")
    return plain and not source.internal and len(source.topics) == 1


def _origin(nodes: Mapping[str, Node], sink: Sink) -> tuple[Any, list[str]]:
    """Return the parents of a repartition sink, past its null-key filter, and that filter."""
    removed = []
    parents: Sequence[str] = sink.parents
    is_filtered = False
    if len(parents) == 1:
        node = nodes[parents[0]]
        if node.is_null_key_filter:
            removed.append(node.name)
            parents, is_filtered = node.parents, True
    return (tuple(parents), is_filtered), removed


def _reading(node: Node, replacements: dict[str, str]) -> Node:
    parents = tuple(replacements.get(parent, parent) for parent in node.parents)
    return node if parents == node.parents else replace(node, parents=parents)


COMBINE = "combine.before.repartition"
BY_NAME: Mapping[str, Rewrite] = {
    "merge.repartition.topics": share_repartitions,
    "reuse.ktable.source.topics": reuse_table_sources,
    COMBINE: combine_before_repartition,
}
"""Rewrites by name; the names of Kafka Streams where it has the rewrite."""
DEFAULT = (COMBINE,)
"""Names of the rewrites that are applied by default."""
REWRITES: tuple[Rewrite, ...] = tuple(BY_NAME.values())


def optimize(topology: G, rewrites: Sequence[Rewrite] = REWRITES) -> G:
    for rewrite in rewrites:
        topology = rewrite(topology)
    return topology
