"""Finds topics that a topology reads and, from what it read, writes again: an endless circle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import Node


def refuse_loops(nodes: Iterable[Node]) -> None:
    """Raise where records come round to the topic that they were read from.

    A topic that is chosen by a function is left alone: it may lead some records back, and a retry
    with a bound must.

    Raises:
        TopologyError: naming the topics, and the way to say that it is meant.
    """
    nodes = tuple(nodes)
    written = _written(nodes)
    for topic in written:
        circle = _way(topic, topic, written)
        if circle is None:
            continue
        way = " -> ".join(repr(one) for one in circle)
        raise TopologyError(
            f"the topology writes to {circle[-1]!r} what comes of {circle[-1]!r} ({way}), so each "
            "record makes more of them for ever; write to another topic, or, where that has an "
            "end, as a retry has, choose the topic by a function: "
            f"to(lambda key, value: {circle[-1]!r})"
        )


def _written(nodes: tuple[Node, ...]) -> Mapping[str, tuple[str, ...]]:
    """The topics that are written from what is read from each."""
    children: dict[str, list[Node]] = {}
    for node in nodes:
        for parent in node.parents:
            children.setdefault(parent, []).append(node)
    found: dict[str, tuple[str, ...]] = {}
    for source in nodes:
        to = tuple(dict.fromkeys(_sinks(source, children))) if source.reads_topics else ()
        for topic in source.reads_topics:
            found[topic] = (*found.get(topic, ()), *to)
    return found


def _sinks(source: Node, children: Mapping[str, list[Node]]) -> Iterable[str]:
    seen: set[str] = set()
    waiting = [source.name]
    while waiting:
        for node in children.get(waiting.pop(), ()):
            if node.name in seen:
                continue
            seen.add(node.name)
            waiting.append(node.name)
            if node.writes_topic is not None:
                yield node.writes_topic


def _way(begin: str, end: str, written: Mapping[str, tuple[str, ...]]) -> list[str] | None:
    """The topics from one to another, at least one step apart."""
    ways = [[begin]]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        for topic in written.get(way[-1], ()):
            if topic == end:
                return [*way, topic]
            if topic not in seen:
                seen.add(topic)
                ways.append([*way, topic])
    return None
