"""Checks for endless loops of topics, and for shared inputs of external sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import Graph, Node, SubTopology

# Rejects external sinks that read a topic directly if their position would not be sufficient.
#
# A sink's position is the offset of the partition that its task reads. So all operators between
# topic and sink must be stateless, and the task must write nothing else: the position does not say
# which records another sink or topic has.


_ADVICE = "leave direct=True out, so that it reads a separate topic"


def refuse_shared_sinks(topology: Graph) -> None:
    """Raise if an external sink that reads its topic directly shares it with other operators."""
    for sub in topology.sub_topologies:
        node = sub.sink_node
        if node is None:
            continue
        why = next(_obstacles(sub, node), None)
        if why is not None:
            raise TopologyError(f"to_sink({node.name!r}, direct=True) {why}; {_ADVICE}")


def _obstacles(sub: SubTopology, node: Node) -> Iterator[str]:
    topics = [topic for source in sub.sources for topic in source.topics]
    if len(topics) > 1:
        yield f"reads {', '.join(map(repr, topics))}, but keeps a position in a single topic"
    (topic,) = topics
    others = [other for other in sub.nodes if other is not node]
    for other in others:
        if other.external_sink is not None:
            yield (
                f"reads topic {topic!r}, and so does to_sink({other.name!r}), whose position may "
                "differ"
            )
        if other.as_sink is not None:
            yield f"reads topic {topic!r}, of which {other.name!r} writes records to another topic"
        if not other.is_stateless:
            yield f"reads topic {topic!r}, and so does {other.name!r}, which is not stateless"
    assert node.external_sink is not None
    if node.external_sink.keyed:
        rekeys = next((other.name for other in others if other.changes_key), None)
        if rekeys is not None:
            yield (
                f"has rows under keys, which {rekeys!r} changes: the rows of a key would come from "
                "several partitions, in any order"
            )


def refuse_loops(nodes: Iterable[Node]) -> None:
    """Raise if records return to the topic that they were read from.

    A topic that a function chooses is not checked: it may return only some records, as a retry with
    a limit must.
    """
    nodes = tuple(nodes)
    written = _written(nodes)
    for topic in written:
        circle = _way(topic, topic, written)
        if circle is None:
            continue
        way = " -> ".join(repr(name) for name in circle)
        raise TopologyError(
            f"records of {circle[-1]!r} are written to {circle[-1]!r} again ({way}), so each "
            "record creates new records endlessly; write to another topic, or, if the loop ends "
            "as a retry does, choose the topic by a function: to(lambda key, value: "
            f"{circle[-1]!r})"
        )


def _written(nodes: tuple[Node, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return, by topic, the topics that are written from its records."""
    children: dict[str, list[Node]] = {}
    for node in nodes:
        for parent in node.parents:
            children.setdefault(parent, []).append(node)
    targets: dict[str, tuple[str, ...]] = {}
    for source in nodes:
        to = tuple(dict.fromkeys(_sinks(source, children))) if source.reads_topics else ()
        for topic in source.reads_topics:
            targets[topic] = (*targets.get(topic, ()), *to)
    return targets


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
    """Return the shortest non-empty path of topics between two topics."""
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
