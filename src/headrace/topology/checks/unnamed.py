"""Finds what has state and no name of its own: stores and repartition topics with a number.

The number counts the steps of the program. A step that is put in front, or taken away, gives
another number to all behind it, and what was stored under the old one is not found any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.topology.graph.graph import Node, SubTopology, by_name

_NUMBERED = re.compile(r"(?:KSTREAM|KTABLE|STATE-STORE)[A-Z-]*-[0-9]{10}")
_REPARTITION = "-repartition"


def is_generated(name: str) -> bool:
    """Whether a name of a store or of a topic has a number of the program's steps in it.

    Example:
        >>> is_generated("KSTREAM-AGGREGATE-STATE-STORE-0000000003")
        True
        >>> is_generated("orders-STATE-STORE-0000000000"), is_generated("counts")
        (True, False)
    """
    return _NUMBERED.search(name) is not None


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A store or a repartition topic whose name was generated.

    Args:
        kind: which of them.
        name: the generated name, without the application's id.
        node: the step that it belongs to.
        reads: the topics that the step's sub-topology reads; for topics between sub-topologies,
            those that are read in front of them.
        advice: what to write in the program.
    """

    kind: Literal["store", "repartition topic"]
    name: str
    node: str
    reads: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        reads = ", ".join(self.reads)
        return f"{self.kind} {self.name}, of {self.node} behind {reads}: write {self.advice}"


def unnamed_steps(subs: Iterable[SubTopology]) -> Iterator[Unnamed]:
    """The stores and repartition topics without a name of their own, in the program's order.

    Example:
        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> table = builder.stream("lines").group_by_key().count()
        >>> print(*unnamed_steps(builder.build().sub_topologies))
        store KSTREAM-AGGREGATE-STATE-STORE-0000000001, of KSTREAM-AGGREGATE-0000000002 behind \
lines: write count(store="...")
    """
    subs = list(subs)
    for sub in subs:
        reads = _read_in_front(sub, subs)
        nodes, told = by_name(sub.nodes), set[str]()
        for node in sub.nodes:
            if node.internal:
                yield from _unnamed_topics(sub, node, reads)
            for store in node.stores:
                # The others that use it were built behind the node that it belongs to.
                if is_generated(store) and store not in told:
                    told.add(store)
                    parents = (nodes[parent] for parent in node.parents)
                    read = any(parent.reads_topics and not parent.internal for parent in parents)
                    advice = node.store_advice(reads_topic=read)
                    yield Unnamed("store", store, node.name, reads, advice)


def _read_in_front(sub: SubTopology, subs: Iterable[SubTopology]) -> tuple[str, ...]:
    """The topics that are no topology's own, from which the records of a sub-topology come."""
    writers = {sink.topic: one for one in subs for sink in one.sinks if sink.internal}
    found: dict[str, None] = {}
    seen, asked = set[int](), [sub]
    while asked:
        one = asked.pop()
        if one.id in seen:
            continue
        seen.add(one.id)
        for source in one.sources:
            for topic in source.topics:
                if topic in writers:
                    asked.append(writers[topic])
                else:
                    found[topic] = None
    return tuple(found)


def _unnamed_topics(sub: SubTopology, source: Node, reads: tuple[str, ...]) -> Iterator[Unnamed]:
    for topic in source.reads_topics:
        if is_generated(topic):
            advice = _repartition_advice(sub, source, topic.removesuffix(_REPARTITION))
            yield Unnamed("repartition topic", topic, source.name, reads, advice)


def _repartition_advice(sub: SubTopology, source: Node, prefix: str) -> str:
    if prefix.startswith("KSTREAM-REPARTITION-"):
        return 'repartition(name="...")'
    advice = next(filter(None, (c.repartition_advice for c in sub.children(source.name))), None)
    if advice is None and any(prefix in node.stores for node in sub.nodes):
        return 'group_by(name="...")'
    return advice or 'name="..." at the step behind it'
