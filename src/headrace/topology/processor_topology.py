"""A topology built node by node, on its own or behind what the DSL made: pure functions.

Each takes the nodes and stores of a topology and returns those of the next one; the methods of
`headrace.topology.topology.Topology` call them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import (
    AnySerde,
    Function,
    G,
    Node,
    OffsetReset,
    Operator,
    Sink,
    Source,
    TableSource,
)
from headrace.topology.lines import said_lines, with_lines
from headrace.topology.naming import legal, legal_topics
from headrace.topology.operators.process import Process, supplied
from headrace.topology.processors.store_faces import KeyValueStore, ReadOnlyKeyValueStore
from headrace.topology.processors.stores import StoreBuilder, store_names, with_stores
from headrace.topology.timestamps import TimestampExtractor


def with_source(
    topology: G,
    name: str,
    topics: tuple[str, ...],
    key: AnySerde | None,
    value: AnySerde | None,
    timestamps: TimestampExtractor | None,
    offset_reset: OffsetReset | None,
) -> G:
    """Add a node that reads topics."""
    found = legal_topics(topics, "add_source()")
    for node in topology.nodes:
        for topic in set(found).intersection(node.reads_topics):
            raise TopologyError(
                f"topic {topic!r} is read by node {node.name!r} already"
                f"{said_lines(topology.lines, 'node', node.name)}; name that as the parent, "
                "as a topic is read once"
            )
    node = Source(
        legal(name),
        topics=found,
        key=key,
        value=value,
        timestamps=timestamps,
        offset_reset=offset_reset,
    )
    return _with(topology, node)


def with_processor(
    topology: G, name: str, supplier: Any, parents: tuple[str, ...], stores: Iterable[Any]
) -> G:
    """Add a node that runs processors."""
    given = supplied(supplier)
    wanted = (*stores, *given.stores)
    node = Operator(
        legal(name),
        _known(topology, name, parents),
        spec=Process(given.supplier),
        uses=store_names(wanted),
    )
    added, lines = with_stores(topology.stores, wanted, topology.lines)
    return _with(replace(topology, stores=added, lines=lines), node)


def with_sink(
    topology: G,
    name: str,
    topic: Any,
    parents: tuple[str, ...],
    key: AnySerde | None,
    value: AnySerde | None,
    partitioner: Function | None,
) -> G:
    """Add a node that writes to a topic."""
    target = topic if callable(topic) else legal(topic, "topic")
    above = _known(topology, name, parents)
    return _with(topology, Sink(legal(name), above, target, key, value, partitioner=partitioner))


def with_state_store(topology: G, store: StoreBuilder[Any], processors: tuple[str, ...]) -> G:
    """Add a store, and connect processors with it."""
    stores, lines = with_stores(topology.stores, (store,), topology.lines)
    added = replace(topology, stores=stores, lines=lines)
    for processor in processors:
        added = connected(added, processor, (store.name,))
    return added


def with_read_only_state_store(
    topology: G, store: StoreBuilder[Any], topic: str, source: str, processor: str
) -> G:
    """Add a store of the last values of a topic, which is its changelog too."""
    kept = store.store
    if kept.face is not KeyValueStore:
        raise TopologyError(
            f"store {store.name!r} cannot be kept from a topic; make it with Stores.key_value"
        )
    if not kept.spec.logged:
        raise TopologyError(
            f"store {store.name!r} is restored from topic {topic!r}, so it is logged; leave out "
            "logged=False, no other topic is made for it"
        )
    read = with_source(topology, source, (topic,), kept.key, kept.value, None, "earliest")
    rows = replace(kept, source_topic=topic, face=ReadOnlyKeyValueStore)
    lines = with_lines(read.lines, "store", (store.name,))
    if any(there.name == store.name for there in topology.stores):
        raise TopologyError(
            f"two stores are named {store.name!r}{said_lines(lines, 'store', store.name)}; "
            "give one of them another name"
        )
    node = TableSource(legal(processor), (source,), store.name)
    return _with(replace(read, stores=(*read.stores, rows), lines=lines), node)


def connected(topology: G, processor: str, stores: tuple[str, ...]) -> G:
    """Let a processor use stores."""
    if not stores:
        raise TopologyError(f"no store was named to connect {processor!r} with; name at least one")
    found = [node for node in topology.nodes if node.name == processor]
    if not found:
        raise TopologyError(f"there is no processor {processor!r} to connect with {stores[0]!r}")
    node = found[0]
    if not node.is_processor:
        raise TopologyError(
            f"node {processor!r} is no processor of one's own, so it cannot be given a store"
        )
    known = {store.name for store in topology.stores}
    for store in stores:
        if store not in known:
            raise TopologyError(
                f"there is no store {store!r} to connect {processor!r} with; add it first"
            )
    given = cast("Operator", node).connected(stores)
    nodes = tuple(given if n is node else n for n in topology.nodes)
    return replace(topology, nodes=nodes)


def _with(topology: G, node: Node) -> G:
    lines = with_lines(topology.lines, "node", (node.name,))
    return replace(topology, nodes=(*topology.nodes, node), lines=lines)


def _known(topology: G, name: str, parents: tuple[str, ...]) -> tuple[str, ...]:
    if not parents:
        raise TopologyError(f"node {name!r} was given no parent; name the nodes that feed it")
    nodes = {node.name: node for node in topology.nodes}
    for parent in parents:
        if parent not in nodes:
            raise TopologyError(f"node {name!r} is fed by {parent!r}, and there is no such node")
        if nodes[parent].as_sink is not None:
            raise TopologyError(f"node {name!r} is fed by {parent!r}, a sink; nothing follows it")
    return tuple(dict.fromkeys(parents))
