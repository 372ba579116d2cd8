"""Counting before the repartition topic: one partial count a key instead of one record each.

Live, the same count is made of single records. A sum of partial sums is the same number, and the
row's timestamp, the largest one, is the same too. What differs is what the count forwards on its
way there, as it does with a cache: fewer updates, the same last one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from topology import serdes
from topology.graph import Aggregate, Node, Operator, Sink, Source, Topology
from topology.operators.cogroup import CogroupInput, CogroupMerge
from topology.operators.context import Headers, OperatorContext, Receive, TableView
from topology.operators.context import Operator as RunningOperator
from topology.operators.foreign_key_join import _Spec as ForeignKeyStep
from topology.operators.keyed_fold import KeyedFold
from topology.operators.primary_key_join import JoinMerge, JoinSide
from topology.operators.table_group import SelectGroup, TableFold

__all__ = ["combinable", "reaches_time", "with_partials"]

PARTIALS_MAX = 500_000
"""How many keys are counted at a time."""

_COUNTED = (str, bytes, int)
"""Types of keys that are equal only where their bytes are; ``1 == 1.0 == True`` are not."""


@dataclass(frozen=True, slots=True)
class CountPartials:
    """Counts the records of each key; tells all counts at a flush."""

    is_table: bool = field(default=False, init=False)
    needs_old: bool = field(default=False, init=False)
    needs_record: bool = field(default=False, init=False)

    def make(self, context: OperatorContext, /) -> RunningOperator:
        """Make the operator of one task."""
        return _Counting(context.forward)

    def view(self, context: OperatorContext, /) -> TableView | None:  # noqa: ARG002
        """There is no table."""
        return None


class _Counting:
    """Hot path: `process` runs for each record."""

    def __init__(self, forward: Receive) -> None:
        counts: dict[Any, list[Any]] = {}
        known = counts.get
        self._counts = counts
        self._forward = forward
        # The counts do not count as held back: they have a bound of their own.
        self.pending: dict[Any, Any] = {}

        def process(key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
            del old
            if value is None:
                return  # a null does not count
            kind = key.__class__
            if kind is not str and kind not in _COUNTED:
                forward(key, 1, None, timestamp, headers)
                return
            count = known(key)
            if count is None:
                counts[key] = [1, timestamp, headers]
                if len(counts) >= PARTIALS_MAX:
                    self.flush()
                return
            count[0] += 1
            if timestamp > count[1]:
                count[1] = timestamp
            count[2] = headers

        self.process = process

    def flush(self) -> None:
        """Forward what was counted, under the headers of each key's last record."""
        counts = list(self._counts.items())
        self._counts.clear()
        for key, (count, timestamp, headers) in counts:
            self._forward(key, count, None, timestamp, headers)


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
    nodes: list[Node] = []
    changed: set[str] = set()
    for node in topology.nodes:
        if isinstance(node, Sink) and node.internal and node.topic in topics:
            counting = f"{node.name}-partials"
            spec = CountPartials()
            nodes.append(Operator(counting, node.parents, spec=spec, reads_value=False))
            nodes.append(replace(node, parents=(counting,), value=serdes.long))
        elif isinstance(node, Source) and node.internal and node.topics[0] in topics:
            changed.add(node.name)
            nodes.append(replace(node, value=serdes.long))
        elif isinstance(node, Aggregate) and changed.intersection(node.parents):
            nodes.append(replace(node, op="aggregate", initializer=_zero, function=_plus))
        else:
            nodes.append(node)
    return Topology(tuple(nodes), topology.stores)


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
