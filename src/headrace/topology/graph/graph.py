"""The logical graph: nodes, their sub-topologies, and the graph that holds both.

The compiler turns each sub-topology into Python source; `describe` prints the same nodes as Kafka
Streams does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import Arguments, TopologyError
from headrace.topology.functions import CreationLines, at_lines
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.node import (
    AnySerde,
    Binder,
    Function,
    GlobalSource,
    Node,
    OffsetReset,
    Sink,
    SourceNode,
)
from headrace.topology.processors.store import Store

# The nodes between sources and sinks: frozen, and added by the calls of the DSL.
#
# Nothing is edited in place. A node has the names of its parents, the user function that it
# computes (never called here), and the serdes at its edges.
#
# A record ``(key, value, timestamp, headers)`` is passed along an edge. Downstream of a table node
# (`Aggregate`, `TableSource`) the value is the table's new value, ``None`` if the row is deleted.
#
# Names of internal topics have no application id here; the runtime adds it.


StatelessOp = Literal[
    "filter",
    "filter_not",
    "map",
    "map_values",
    "flat_map",
    "flat_map_values",
    "select_key",
    "peek",
    "for_each",
    "print",
    "pass",
    "null_key_filter",
]

_UNSEEING = frozenset({"pass", "null_key_filter"})
_NEW_KEY = frozenset({"map", "flat_map", "select_key"})
_NEW_VALUE = frozenset({"map", "map_values", "flat_map", "flat_map_values"})
_HARMLESS = frozenset({"pass", "null_key_filter", "filter", "filter_not", "select_key"})


@dataclass(frozen=True, slots=True)
class Stateless(Node):
    """Map, filter or side effect; `pass` forwards unchanged (merge, to_stream, a branch).

    `function` takes ``(key, value)``, or only the value for the ``*_values`` operators unless
    `with_key` is set. `label` is the prefix that `print` writes.
    """

    op: StatelessOp = "pass"
    function: Function | None = None
    with_key: bool = True
    label: str | None = None
    stream: bool = True
    """Whether the node processes a stream; tables use the same operators."""

    @property
    def reads_key(self) -> bool:
        return self.with_key and self.op not in _UNSEEING

    @property
    def reads_value(self) -> bool:
        return self.op not in _UNSEEING

    @property
    def needs_old(self) -> bool:
        return self.maps_table

    @property
    def changes_key(self) -> bool:
        return self.op in _NEW_KEY

    @property
    def changes_value(self) -> bool:
        return self.op in _NEW_VALUE

    @property
    def passes_null_keys(self) -> bool:
        return self.op not in _NEW_KEY

    @property
    def is_null_key_filter(self) -> bool:
        return self.op == "null_key_filter"

    def keeping_null_keys(self) -> Node:
        return replace(self, op="pass") if self.is_null_key_filter else self

    @property
    def leaves_value_alone(self) -> bool:
        return self.op in _HARMLESS

    @property
    def is_pass_through(self) -> bool:
        return self.op in _UNSEEING

    @property
    def is_stateless(self) -> bool:
        """Whether the node processes a stream; the result for a table depends on its rows."""
        return not self.maps_table

    @property
    def maps_table(self) -> bool:
        return self.op != "pass" and not self.stream

    @property
    def word(self) -> str:
        return self.op


def _asked(name: str) -> Any:
    # Not attrgetter, which has no __code__: from Python 3.14, dataclasses with slots need it.
    return property(lambda node: getattr(node.spec, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler(Node):
    """Filter of a stream by the bytes of its keys or values."""

    takes: Callable[[bytes | None], bool]
    by: Literal["key", "value"]
    serde: AnySerde | None
    """Serde of the bytes; None takes the default."""

    passes_null_keys: ClassVar[bool] = True
    leaves_value_alone: ClassVar[bool] = True
    is_stateless: ClassVar[bool] = True
    serde_arguments: ClassVar[Arguments] = {"key": "serde", "value": "serde"}

    @property
    def reads_key(self) -> bool:
        return self.by == "key"

    @property
    def reads_value(self) -> bool:
        return self.by == "value"

    def bound(self, binder: Binder) -> Node:
        serde = binder.part(self.serde, self.name, is_key=self.reads_key)
        return self if serde == self.serde else replace(self, serde=serde)


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """Router of each record to the child of the first predicate that holds; None always holds.

    ``children[i]`` is the name of the `Stateless` ``pass`` node after ``predicates[i]``. A record
    for which no predicate holds is dropped.
    """

    predicates: tuple[Function | None, ...] = ()
    children: tuple[str, ...] = ()

    is_stateless: ClassVar[bool] = True
    reads_key: ClassVar[bool] = True
    reads_value: ClassVar[bool] = True
    passes_null_keys: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """Aggregation of a grouped stream into a table in `store`, with a row per key."""

    fold: Fold = field(kw_only=True)
    store: str = field(kw_only=True)

    changes_value: ClassVar[bool] = True
    is_table: ClassVar[bool] = True
    sends_old_values: ClassVar[bool] = True

    @property
    def reads_key(self) -> bool:
        return self.fold.reads_key

    @property
    def reads_value(self) -> bool:
        return self.fold.reads_value

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    @property
    def counts(self) -> bool:
        return not self.fold.asks_user

    @property
    def folds(self) -> Fold | None:
        return self.fold

    @property
    def word(self) -> str:
        return self.fold.word

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        return f'{self.fold.word}(store="...")'


@dataclass(frozen=True, slots=True)
class TableSource(Node):
    """Table of the last value of each key; null deletes. It only forwards if it has no store."""

    store: str | None = None
    call: str | None = None
    """DSL call that added it, if it is neither `table` nor `to_table`."""

    reads_as_table: ClassVar[bool] = True
    is_table: ClassVar[bool] = True

    @property
    def reads_value(self) -> bool:
        return self.store is not None

    @property
    def stores(self) -> tuple[str, ...]:
        return () if self.store is None else (self.store,)

    @property
    def sends_old_values(self) -> bool:
        return self.store is not None

    @property
    def copies_into(self) -> str | None:
        return self.store

    def with_store(self, store: str) -> Node:
        return replace(self, store=store)

    def store_advice(self, *, reads_topic: bool) -> str:
        call = self.call or ("table" if reads_topic else "to_table")
        return f'{call}(store="...")'

    repartition_advice: ClassVar[str] = 'to_table(name="...")'


@dataclass(frozen=True, slots=True)
class OperatorNode(Node):
    """Node that runs as an object, made by `spec` for each task; the spec has its properties.

    `uses` names the stores that it reads or writes, its own stores first. `view_uses` names the
    stores that are needed to read the rows of its table, if it makes a table.
    """

    spec: OperatorSpec = field(kw_only=True)
    uses: tuple[str, ...] = ()
    view_uses: tuple[str, ...] = ()
    needs_key: bool = False
    """Whether the null-key policy applies, so that the operator never receives a null key."""
    reads_value: bool = True
    """Whether it reads the value; otherwise it receives the bytes, or None for a null."""

    reads_key: ClassVar[bool] = True
    changes_value: ClassVar[bool] = True

    needs_old = _asked("needs_old")
    needs_record = _asked("needs_record")
    is_timed = _asked("is_timed")
    batches_records = _asked("batches_records")
    allows_reordering = _asked("allows_reordering")
    failure_reaction = _asked("failure_reaction")
    changes_key = _asked("changes_key")
    partitioned_like = _asked("partitioned_like")
    is_table = _asked("is_table")
    reads_as_table = _asked("reads_as_table")
    is_versioned = _asked("is_versioned")
    makes_windows = _asked("makes_windows")
    follows_windows = _asked("follows_windows")
    close_wait_ms = _asked("close_wait_ms")
    row_kind = _asked("row_kind")
    is_processor = _asked("is_processor")
    external_sink = _asked("external_sink")
    reads_directly = _asked("reads_directly")
    repartition_advice = _asked("repartition_advice")
    serde_arguments = _asked("serde_arguments")
    sends_old_values = _asked("is_table")

    @property
    def word(self) -> str:
        return "Operator"  # stored in the description of the deployed topology

    def bound(self, binder: Binder) -> Node:
        spec = self.spec.bound(binder.part)
        return self if spec is self.spec else replace(self, spec=spec)

    @property
    def stores(self) -> tuple[str, ...]:
        return self.uses

    @property
    def view_stores(self) -> tuple[str, ...]:
        return self.view_uses

    def reads_any_key(self, store: str) -> bool:
        return self.spec.reads_any_key(store)

    def fills(self, store: str) -> bool:
        return self.spec.fills(store)

    def with_store(self, store: str) -> Node:
        spec = self.spec.with_store(store)
        return replace(self, spec=spec, uses=(store, *self.uses), view_uses=(store,))

    def connected(self, stores: tuple[str, ...]) -> Self:
        return replace(self, uses=tuple(dict.fromkeys((*self.uses, *stores))))

    def store_advice(self, *, reads_topic: bool) -> str:
        return self.spec.store_advice(reads_topic=reads_topic)


@dataclass(frozen=True, slots=True)
class GlobalTable(Node):
    """Table of the last value of each key that its `GlobalSource` reads."""

    store: str = ""

    is_global: ClassVar[bool] = True

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)


__all__ = [
    "Aggregate",
    "AnySerde",
    "Branch",
    "Function",
    "G",
    "GlobalSource",
    "GlobalStore",
    "GlobalTable",
    "Graph",
    "Node",
    "OffsetReset",
    "OperatorNode",
    "Sampler",
    "Sink",
    "SourceNode",
    "Stateless",
    "StatelessOp",
    "SubTopology",
    "TableSource",
    "by_name",
    "check",
    "is_versioned",
    "sends_old_values",
    "split",
]


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that are connected by more than a topic, run by a task for each partition."""

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(s for n in self.nodes if (s := n.as_source) is not None)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return tuple(s for n in self.nodes if (s := n.as_sink) is not None)

    @property
    def sink_node(self) -> Node | None:
        return next((n for n in self.nodes if n.external_sink is not None), None)

    def children(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if name in n.parents)


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """A global table with its source; its id is from the sequence of sub-topology ids."""

    id: int
    source: GlobalSource
    table: GlobalTable
    store: Store


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and stores in the order in which they were added; `Topology` adds the public API."""

    nodes: tuple[Node, ...] = ()
    stores: tuple[Store, ...] = ()
    lines: CreationLines = field(default_factory=dict, compare=False, repr=False)
    """Source locations of nodes and stores, for error messages only."""
    sub_topologies: tuple[SubTopology, ...] = field(init=False)
    global_stores: tuple[GlobalStore, ...] = field(init=False)

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """Sources that tasks read, in the order in which they were added."""
        return tuple(s for n in self.nodes if (s := n.as_source) is not None)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Sinks, in the order in which they were added."""
        return tuple(s for n in self.nodes if (s := n.as_sink) is not None)

    def __post_init__(self) -> None:
        check(self.nodes, self.stores, self.lines)
        groups = split(self.nodes, self.stores)
        subs = tuple(group for group in groups if group.sources)
        object.__setattr__(self, "sub_topologies", subs)
        apart = tuple(_global_store(group) for group in groups if not group.sources)
        object.__setattr__(self, "global_stores", apart)


G = TypeVar("G", bound=Graph)
"""A subclass of `Graph`, such as `Topology`."""


def check(
    nodes: Iterable[Node], stores: Iterable[Store], lines: CreationLines = MappingProxyType({})
) -> None:
    nodes = tuple(nodes)
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise TopologyError(
                f"two nodes are named {node.name!r}{at_lines(lines, 'node', node.name)}; "
                "give either node another name="
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
                f"two stores are named {name!r}{at_lines(lines, 'store', name)}; "
                "give either store another name"
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
                    "once and use its result twice"
                )
            readers.add(topic)
    for node in nodes:
        for topic in () if node.is_global or node.internal else node.reads_topics:
            if topic in readers:
                raise TopologyError(
                    f"topic {topic!r} is read as a global table and by {node.name!r} too; "
                    "read it once, or join with the table instead of using the stream"
                )


def sends_old_values(nodes: Mapping[str, Node], name: str) -> bool:
    """Return whether a node forwards old values: stored tables do, and tables mapped from them."""
    return _maker(nodes, name).sends_old_values


def is_versioned(nodes: Mapping[str, Node], name: str) -> bool:
    """Return whether a node is a versioned table, or is mapped from a versioned table."""
    return _maker(nodes, name).is_versioned


def _maker(nodes: Mapping[str, Node], name: str) -> Node:
    """Return the node, or the table upstream that it maps row by row."""
    node = nodes[name]
    while node.maps_table:
        node = nodes[node.parents[0]]
    return node


def split(nodes: tuple[Node, ...], stores: tuple[Store, ...]) -> tuple[SubTopology, ...]:
    """Group nodes that are connected by an edge or a store; a global table is a group, too.

    Ids follow the order in which the first node of each group was added, as in Kafka Streams
    (`InternalTopologyBuilder.makeNodeGroups`), so the task ids equal those of a Java application.
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
                f"table {table.name!r} and is written only by it; give the node another store"
            )
    elif all(node.as_source is None for node in group):
        raise TopologyError(f"node {group[0].name!r} is not connected to a source")


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
    return {node.name: node for node in nodes}
