"""Counting before the repartition topic: one partial count a key instead of one record each.

Live, the same count is made of single records. A sum of partial sums is the same number, and the
row's timestamp, the largest one, is the same too. What differs is what the count forwards on its
way there, as it does with a cache: fewer updates, the same last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from spark_bridge.order import Order
from topology import serdes
from topology.compiler import Headers
from topology.graph import Aggregate, Node, Operator, Source, Topology
from topology.operators.cogroup import CogroupInput, CogroupMerge
from topology.operators.foreign_key_join import _Spec as ForeignKeyStep
from topology.operators.keyed_fold import KeyedFold
from topology.operators.primary_key_join import JoinMerge, JoinSide
from topology.operators.table_group import SelectGroup, TableFold

__all__ = ["Partials", "combinable", "with_partials"]

PARTIALS_MAX = 500_000
"""How many keys are counted at a time."""

_encode = serdes.long.serialize

Partial = tuple["bytes | None", bytes, int, "Headers | None", Order, int]


class Partials:
    """The counts of one repartition topic in one task.

    >>> partials = Partials()
    >>> for time in (5, 7, 6):
    ...     partials.add(b"a", b"value", time, None, (7, 0, time))
    >>> partials.add(b"a", None, 9, None, (9, 0, 9))
    >>> [(key, serdes.long.deserialize(n), time) for key, n, time, *_ in partials.take()]
    [(b'a', 3, 7)]
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[bytes | None, list[Any]] = {}

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None,
        order: Order,
    ) -> None:
        """Count a record; one with a null value does not count."""
        if value is None:
            return
        known = self._counts.get(key)
        if known is None:
            self._counts[key] = [1, timestamp, headers, order]
            return
        known[0] += 1
        if timestamp > known[1]:
            known[1] = timestamp
        known[2] = headers
        known[3] = order

    @property
    def is_full(self) -> bool:
        """Whether it is time to take them."""
        return len(self._counts) >= PARTIALS_MAX

    def take(self) -> Iterator[Partial]:
        """Yield key, encoded count, time, headers, order and number, and begin again.

        The headers and the order are those of the key's last record.
        """
        counts, self._counts = self._counts, {}
        for number, (key, (count, timestamp, headers, order)) in enumerate(counts.items()):
            yield key, _encode(count), timestamp, headers, order, number


def combinable(topology: Topology) -> frozenset[str]:
    """The repartition topics that may take counts, as the topology names them.

    Those that one un-windowed count reads, and nothing else, where nothing behind the count
    depends on stream time.
    """
    timed = reaches_time(topology)
    found = set()
    for sub in topology.sub_topologies:
        for source in sub.sources:
            children = sub.children(source.name)
            if (
                source.internal
                and len(source.topics) == 1
                and len(children) == 1
                and isinstance(children[0], Aggregate)
                and children[0].op == "count"
                and children[0].parents == (source.name,)
                and children[0].name not in timed
            ):
                found.add(source.topics[0])
    return frozenset(found)


def with_partials(topology: Topology, topics: Collection[str]) -> Topology:
    """Let the counts behind these repartition topics add up partial counts."""
    if not topics:
        return topology
    changed = {
        node.name
        for node in topology.nodes
        if isinstance(node, Source) and node.internal and node.topics[0] in topics
    }

    def adding(node: Node) -> Node:
        if isinstance(node, Source) and node.name in changed:
            return replace(node, value=serdes.long)
        if isinstance(node, Aggregate) and changed.intersection(node.parents):
            return replace(node, op="aggregate", initializer=_zero, function=_plus)
        return node

    return Topology(tuple(map(adding, topology.nodes)), topology.stores)


def _zero() -> int:
    return 0


def _plus(key: Any, partial: int, count: int) -> int:  # noqa: ARG001
    return count + partial


def reaches_time(topology: Topology) -> frozenset[str]:
    """The nodes behind which something depends on when records come, by stream time."""
    readers: dict[str, list[str]] = {}
    by_topic = {
        topic: node.name
        for node in topology.nodes
        if isinstance(node, Source) and node.internal
        for topic in node.topics
    }
    for node in topology.nodes:
        for parent in node.parents:
            readers.setdefault(parent, []).append(node.name)
        topic = getattr(node, "topic", None)
        if getattr(node, "internal", False) and topic in by_topic:
            readers.setdefault(node.name, []).append(by_topic[topic])
    timed = {node.name for node in topology.nodes if _is_timed(node)}
    reached = {name for name in readers if timed & _behind(name, readers)}
    return frozenset(reached)


def _behind(name: str, readers: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(readers.get(name, ()))
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += readers.get(one, ())
    return seen


_UNTIMED = (
    CogroupInput,
    CogroupMerge,
    JoinMerge,
    JoinSide,
    KeyedFold,
    SelectGroup,
    TableFold,
    ForeignKeyStep,
)
"""Steps of un-windowed tables; what is not known here may depend on stream time."""


def _is_timed(node: Node) -> bool:
    return isinstance(node, Operator) and not isinstance(node.spec, _UNTIMED)
