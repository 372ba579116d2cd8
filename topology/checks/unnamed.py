"""Finds what has state and no name of its own: stores and repartition topics with a number.

The number counts the steps of the program. A step that is put in front, or taken away, gives
another number to all behind it, and what was stored under the old one is not found any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.topology.graph.graph import (
    Aggregate,
    Node,
    Operator,
    Source,
    SubTopology,
    TableSource,
    by_name,
    stores_of,
)
from headrace.topology.operators.joins.stream_join import KeepSide
from headrace.topology.operators.joins.table_join import TableJoin
from headrace.topology.operators.joins.table_join_grace import PostponedTableJoin

__all__ = ["Unnamed", "is_generated", "unnamed_steps"]

_NUMBERED = re.compile(r"(?:KSTREAM|KTABLE|STATE-STORE)[A-Z-]*-[0-9]{10}")
_REPARTITION = "-repartition"
_FOREIGN_KEY_JOIN = "KTABLE-FK-JOIN-"
# How a store of an operator is named, by what its generated name begins with.
_OF_OPERATORS = {
    "KSTREAM-JOINTHIS-": 'join(store="...")',
    "KSTREAM-JOINOTHER-": 'join(store="...")',
    "KSTREAM-OUTERTHIS-": 'join(store="...")',
    "KSTREAM-OUTEROTHER-": 'join(store="...")',
    "KSTREAM-OUTERSHARED-": 'join(store="...")',
    # Rows that wait for a table's late ones.
    "KSTREAM-JOIN-": 'join(name="...")',
    "KSTREAM-LEFTJOIN-": 'join(name="...")',
    "KTABLE-MERGE-": 'join(store="...")',
    "KSTREAM-REDUCE-": 'reduce(store="...")',
    "KSTREAM-AGGREGATE-": 'count(store="...") or aggregate(store="...")',
    "KTABLE-AGGREGATE-": 'count(store="...") or aggregate(store="...")',
    "KTABLE-REDUCE-": 'reduce(store="...")',
    "COGROUPKSTREAM-": 'aggregate(store="...")',
    "KSTREAM-TOTABLE-": 'to_table(store="...")',
    "KTABLE-TRANSFORMVALUES-": 'transform_values(store="...")',
    "KTABLE-SUPPRESS-": 'suppress(name="...")',
}


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
        reads: the topics that the step's sub-topology reads.
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
    for sub in subs:
        reads = tuple(topic for source in sub.sources for topic in source.topics)
        told: set[str] = set()
        for node in sub.nodes:
            if isinstance(node, Source) and node.internal:
                yield from _unnamed_topics(sub, node, reads)
            for store in stores_of(node):
                # The others that use it were built behind the node that it belongs to.
                if is_generated(store) and store not in told:
                    told.add(store)
                    advice = _store_advice(sub, node, store)
                    yield Unnamed("store", store, node.name, reads, advice)


def _unnamed_topics(sub: SubTopology, source: Source, reads: tuple[str, ...]) -> Iterator[Unnamed]:
    for topic in source.topics:
        if is_generated(topic):
            advice = _repartition_advice(sub, source, topic.removesuffix(_REPARTITION))
            yield Unnamed("repartition topic", topic, source.name, reads, advice)


def _store_advice(sub: SubTopology, node: Node, store: str) -> str:
    if isinstance(node, Aggregate):
        return f'{node.op}(store="...")'
    if node.name.startswith(_FOREIGN_KEY_JOIN):
        option = "store" if isinstance(node, TableSource) else "name"
        return f'join({option}="...")'
    if isinstance(node, TableSource):
        parents = (by_name(sub.nodes)[parent] for parent in node.parents)
        read = any(isinstance(parent, Source) and not parent.internal for parent in parents)
        return 'table(store="...")' if read else 'to_table(store="...")'
    for prefix, advice in _OF_OPERATORS.items():
        if store.startswith(prefix):
            return advice
    return 'store="..." or name="..." at that step'


def _repartition_advice(sub: SubTopology, source: Source, prefix: str) -> str:
    if any(prefix in stores_of(node) for node in sub.nodes):
        return 'group_by(name="...")'
    if prefix.startswith(_FOREIGN_KEY_JOIN):
        return 'join(name="...")'
    if prefix.startswith("KSTREAM-REPARTITION-"):
        return 'repartition(name="...")'
    children = sub.children(source.name)
    if any(isinstance(node, TableSource) for node in children):
        return 'to_table(name="...")'
    joins = (KeepSide, TableJoin, PostponedTableJoin)
    if any(isinstance(node, Operator) and isinstance(node.spec, joins) for node in children):
        return 'join(name="...")'
    return 'name="..." at the step behind it'
