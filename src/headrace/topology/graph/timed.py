"""What in a topology depends on stream time, and so on when each record comes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.topology.graph.graph import Graph


def reaches_time(topology: Graph) -> frozenset[str]:
    """The nodes behind which something depends on when records come, by stream time."""
    return frozenset(timed_behind(topology))


def timed_behind(topology: Graph) -> Mapping[str, str]:
    """By node: the first one behind it that depends on when records come, where there is any."""
    readers: dict[str, list[str]] = {}
    by_topic = {
        topic: node.name for node in topology.sources if node.internal for topic in node.topics
    }
    for node in topology.nodes:
        for parent in node.parents:
            readers.setdefault(parent, []).append(node.name)
        topic = node.writes_topic
        if node.internal and topic is not None:
            readers.setdefault(node.name, []).append(by_topic[topic])
    timed = [node.name for node in topology.nodes if node.is_timed]
    found: dict[str, str] = {}
    for name in readers:
        behind = _behind(name, readers)
        first = next((one for one in timed if one in behind), None)
        if first is not None:
            found[name] = first
    return found


def _behind(name: str, readers: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(readers.get(name, ()))
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += readers.get(one, ())
    return seen
