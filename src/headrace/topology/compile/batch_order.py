"""Check whether batching the results of an operator can change the order of records.

An operator that batches records forwards their results together, in order. A linear path downstream
receives the same records in the same order as without batching. But if its results mix with records
of another path, in a merge, a join, a store or a topic, or if they reach a processor, which uses
the stream time of its task, the order would depend on the batches, which differ between runs. In
these cases, and on Spark, each record is finished before the next one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.topology.graph.graph import Node, SubTopology, by_name

ANY_TOPIC = ""
"""Placeholder for the topic of a sink whose function chooses it."""


def mixes_downstream(sub: SubTopology, node: Node, *, same_source: bool) -> bool:
    """Whether nodes downstream also process records that do not pass through the node.

    With `same_source`, only records of the node's own sources count: the node forwards all results
    before records of another source are processed.
    """
    names_downstream = _names_downstream(sub, node)
    sources = _sources(sub, node)
    downstream = [other for other in sub.nodes if other.name in names_downstream]
    others = [
        other
        for other in sub.nodes
        if other.name not in names_downstream
        and other is not node
        and (not same_source or _sources(sub, other) & sources)
    ]
    if any(child.needs_record and not child.batches_records for child in downstream):
        return True
    names = {other.name for other in others}
    if any(names.intersection(child.parents) for child in downstream):
        return True
    if _stores(others) & _stores(downstream):
        return True
    other_topics, topics = _topics(others), _topics(downstream)
    is_unknown = ANY_TOPIC in other_topics or ANY_TOPIC in topics
    return bool(other_topics & topics) or (is_unknown and bool(other_topics) and bool(topics))


def _names_downstream(sub: SubTopology, node: Node) -> set[str]:
    downstream: set[str] = set()
    names = [node.name]
    while names:
        children = [c.name for c in sub.children(names.pop()) if c.name not in downstream]
        downstream.update(children)
        names += children
    return downstream


def _sources(sub: SubTopology, node: Node) -> set[str]:
    """Return the sources whose records may reach a node."""
    nodes = by_name(sub.nodes)
    sources: set[str] = set()
    seen: set[str] = set()
    names = [node.name]
    while names:
        name = names.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        if nodes[name].as_source is not None:
            sources.add(name)
        names += nodes[name].parents
    return sources


def _stores(nodes: Iterable[Node]) -> set[str]:
    return {store for node in nodes for store in (*node.stores, *node.view_stores)}


def _topics(nodes: Iterable[Node]) -> set[str]:
    sinks = [sink for node in nodes if (sink := node.as_sink) is not None]
    return {ANY_TOPIC if callable(s.topic) else f"{s.internal} {s.topic}" for s in sinks}
