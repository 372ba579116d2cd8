"""The logical graph: nodes, their sub-topologies, and the graph that holds both.

The compiler turns each sub-topology into Python source; `describe` prints the same nodes as Kafka
Streams does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar, cast

from headrace.topology.errors import TopologyError
from headrace.topology.graph.node import (
    AnySerde,
    Function,
    GlobalSource,
    Node,
    OffsetReset,
    Sink,
    Source,
)
from headrace.topology.graph.nodes import (
    Aggregate,
    Branch,
    Fused,
    GlobalTable,
    Operator,
    Stateless,
    StatelessOp,
    TableSource,
)
from headrace.topology.lines import Lines, said_lines
from headrace.topology.processors.store import Store

__all__ = [
    "Aggregate",
    "AnySerde",
    "Branch",
    "Function",
    "Fused",
    "G",
    "GlobalSource",
    "GlobalStore",
    "GlobalTable",
    "Graph",
    "Node",
    "OffsetReset",
    "Operator",
    "Sink",
    "Source",
    "Stateless",
    "StatelessOp",
    "SubTopology",
    "TableSource",
    "by_name",
    "check",
    "is_versioned",
    "split",
    "tells_old",
]


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that are connected by more than a topic; one task runs it for each partition."""

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in the order in which they were built."""
        return tuple(s for n in self.nodes if (s := n.as_source) is not None)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks, in the order in which they were built."""
        return tuple(s for n in self.nodes if (s := n.as_sink) is not None)

    @property
    def outside(self) -> Node | None:
        """The node that writes to a table outside of Kafka, if that is what it is for."""
        return next((n for n in self.nodes if n.writes_outside is not None), None)

    def children(self, name: str) -> tuple[Node, ...]:
        """The nodes that `name` feeds, in declaration order."""
        return tuple(n for n in self.nodes if name in n.parents)


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """A global table with its source: no sub-topology, but numbered among them."""

    id: int
    source: GlobalSource
    table: GlobalTable
    store: Store


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order in which they were built, and stores; `Topology` is one with a face."""

    nodes: tuple[Node, ...] = ()
    stores: tuple[Store, ...] = ()
    lines: Lines = field(default_factory=dict, compare=False, repr=False)
    """Where each is written; for errors alone."""
    sub_topologies: tuple[SubTopology, ...] = field(init=False)
    global_stores: tuple[GlobalStore, ...] = field(init=False)

    @property
    def sources(self) -> tuple[Source, ...]:
        """What reads topics for tasks, in the order in which it was built."""
        return tuple(s for n in self.nodes if (s := n.as_source) is not None)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """What writes to topics, in the order in which it was built."""
        return tuple(s for n in self.nodes if (s := n.as_sink) is not None)

    def __post_init__(self) -> None:
        check(self.nodes, self.stores, self.lines)
        groups = split(self.nodes, self.stores)
        subs = tuple(group for group in groups if group.sources)
        object.__setattr__(self, "sub_topologies", subs)
        apart = tuple(_global_store(group) for group in groups if not group.sources)
        object.__setattr__(self, "global_stores", apart)


G = TypeVar("G", bound=Graph)
"""A graph of one's own class, such as a `Topology`."""


def check(
    nodes: Iterable[Node], stores: Iterable[Store], lines: Lines = MappingProxyType({})
) -> None:
    """Refuse duplicate names, unknown parents and unknown or unused stores.

    Raises:
        TopologyError: naming the node or store, and what to change.
    """
    nodes = tuple(nodes)
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise TopologyError(
                f"two nodes are named {node.name!r}{said_lines(lines, 'node', node.name)}; "
                "give one of them another name="
            )
        for parent in node.parents:
            if parent not in seen:
                raise TopologyError(f"node {node.name!r} reads from unknown node {parent!r}")
        seen.add(node.name)
    _check_global_topics(nodes)
    names = [store.name for store in stores]
    for name in names:
        if names.count(name) > 1:
            raise TopologyError(
                f"two stores are named {name!r}{said_lines(lines, 'store', name)}; "
                "give one of them another store="
            )
    for node in nodes:
        for name in node.stores:
            if name not in names:
                raise TopologyError(f"node {node.name!r} uses unknown store {name!r}")


def _check_global_topics(nodes: Iterable[Node]) -> None:
    nodes = tuple(nodes)
    readers: set[str] = set()
    for node in nodes:
        for topic in node.reads_topics if node.is_global else ():
            if topic in readers:
                raise TopologyError(
                    f"topic {topic!r} is read as a global table twice; call global_table() "
                    "once and join with what it returns"
                )
            readers.add(topic)
    for node in nodes:
        for topic in () if node.is_global or node.internal else node.reads_topics:
            if topic in readers:
                raise TopologyError(
                    f"topic {topic!r} is read as a global table and by {node.name!r} too; "
                    "read it once, or join with the table where the stream was to be used"
                )


def tells_old(nodes: Mapping[str, Node], name: str) -> bool:
    """Whether a node says with each change which value it forwarded before.

    Tables do, as far as they are stored or computed from one that is; streams do not.
    """
    return _maker(nodes, name).tells_old


def is_versioned(nodes: Mapping[str, Node], name: str) -> bool:
    """Whether a node is a table that may forward changes out of order (`operators.versioned`).

    Tables with versions are, and those that are filtered or mapped from one.
    """
    return _maker(nodes, name).is_versioned


def _maker(nodes: Mapping[str, Node], name: str) -> Node:
    """The node itself, or that of the table which it computes with, row by row."""
    node = nodes[name]
    while node.maps_table:
        node = nodes[node.parents[0]]
    return node


def split(nodes: tuple[Node, ...], stores: tuple[Store, ...]) -> tuple[SubTopology, ...]:
    """Group nodes that are connected by an edge or a shared store; global tables are groups too.

    Ids follow the order in which the first node of each was built, as in Kafka Streams
    (`InternalTopologyBuilder.makeNodeGroups`), so a Java application's task ids are the same.
    """
    groups = _Groups()
    for node in nodes:
        groups.add(node.name)
        for parent in node.parents:
            groups.join(node.name, parent)
        for store in node.stores:
            groups.join(node.name, f"store:{store}")
    numbers: dict[str, int] = {}
    members: list[list[Node]] = []
    for node in nodes:
        number = numbers.setdefault(groups.root(node.name), len(members))
        if number == len(members):
            members.append([])
        members[number].append(node)
    for group in members:
        _check_group(group)
    return tuple(
        SubTopology(
            number,
            tuple(group),
            tuple(s for s in stores if numbers.get(groups.root(f"store:{s.name}")) == number),
        )
        for number, group in enumerate(members)
    )


def _check_group(group: list[Node]) -> None:
    table = next((node for node in group if node.is_global and node.stores), None)
    if table is not None:
        other = next((node for node in group if not node.is_global), None)
        if other is not None:
            raise TopologyError(
                f"node {other.name!r} uses store {table.stores[0]!r}, which belongs to the global "
                f"table {table.name!r} and is written by nobody else; give it a store of its own"
            )
    elif all(node.as_source is None for node in group):
        raise TopologyError(f"node {group[0].name!r} is not fed by any source")


def _global_store(group: SubTopology) -> GlobalStore:
    source, table = group.nodes
    (store,) = group.stores
    return GlobalStore(group.id, cast("GlobalSource", source), cast("GlobalTable", table), store)


class _Groups:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def add(self, name: str) -> None:
        self._parent.setdefault(name, name)

    def root(self, name: str) -> str:
        self.add(name)
        while self._parent[name] != name:
            name = self._parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        self._parent[self.root(a)] = self.root(b)


def by_name(nodes: Iterable[Node]) -> Mapping[str, Node]:
    """Index nodes by their names."""
    return {node.name: node for node in nodes}
