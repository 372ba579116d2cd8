"""Whether batching the results of an operator can change the order of records.

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


def meets_others(sub: SubTopology, node: Node, *, in_runs: bool) -> bool:
    """Whether nodes downstream also process records that do not pass through the node.

    With `in_runs`, only records of the same source count: the node forwards all results before
    records of another source are processed.
    """
    below = _below(sub, node)
    mine = _sources(sub, node)
    beside = [
        other
        for other in sub.nodes
        if other.name not in below
        and other is not node
        and (not in_runs or _sources(sub, other) & mine)
    ]
    followers = [other for other in sub.nodes if other.name in below]
    if any(other.needs_record and not other.gathers for other in followers):
        return True
    names = {other.name for other in beside}
    if any(names.intersection(other.parents) for other in followers):
        return True
    if _stores(beside) & _stores(followers):
        return True
    theirs, ours = _topics(beside), _topics(followers)
    either = ANY_TOPIC in theirs or ANY_TOPIC in ours
    return bool(theirs & ours) or (either and bool(theirs) and bool(ours))


def _below(sub: SubTopology, node: Node) -> set[str]:
    found: set[str] = set()
    names = [node.name]
    while names:
        children = [child.name for child in sub.children(names.pop()) if child.name not in found]
        found.update(children)
        names += children
    return found


def _sources(sub: SubTopology, node: Node) -> set[str]:
    """Return the sources whose records may reach a node."""
    nodes = by_name(sub.nodes)
    found: set[str] = set()
    seen: set[str] = set()
    names = [node.name]
    while names:
        name = names.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        if nodes[name].as_source is not None:
            found.add(name)
        names += nodes[name].parents
    return found


def _stores(nodes: Iterable[Node]) -> set[str]:
    return {store for node in nodes for store in (*node.stores, *node.view_stores)}


def _topics(nodes: Iterable[Node]) -> set[str]:
    sinks = [sink for node in nodes if (sink := node.as_sink) is not None]
    return {ANY_TOPIC if callable(s.topic) else f"{s.internal} {s.topic}" for s in sinks}
