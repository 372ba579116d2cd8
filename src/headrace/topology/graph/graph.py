"""The logical graph: nodes, their sub-topologies, and the graph that holds both.

The compiler turns each sub-topology into Python source; `describe` prints the same nodes as Kafka
Streams does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, cast

from headrace.topology.context.fused_spec import FusedSpec
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import TopologyError
from headrace.topology.functions import Lines, said_lines
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.node import (
    AnySerde,
    Binder,
    Function,
    GlobalSource,
    Node,
    OffsetReset,
    Sink,
    Source,
)
from headrace.topology.processors.store import Store

# The nodes between the edges of the graph: frozen, and made by the calls of the DSL.
#
# Each call adds nodes; nothing is edited in place. A node knows its parents by name, what it
# computes
# (a user function, never called here) and the serdes at its edges.
#
# What flows along an edge is a record ``(key, value, timestamp, headers)``. Behind a table node
# (`Aggregate`, `TableSource`) the value is the table's new value, ``None`` when the row is gone.
#
# Internal topics are named here without the application id; the runtime puts it in front.


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
    """Maps, filters and side effects; `pass` forwards unchanged (merge, to_stream, a branch).

    `function` takes ``(key, value)``, or the value alone for the ``*_values`` operators unless
    `with_key` is set. `label` is what `print` writes in front.
    """

    op: StatelessOp = "pass"
    function: Function | None = None
    with_key: bool = True
    label: str | None = None
    stream: bool = True
    """Whether the name is one of a stream's node; tables use the same operators."""

    @property
    def reads_key(self) -> bool:
        """Whether the function is given the key."""
        return self.with_key and self.op not in _UNSEEING

    @property
    def reads_value(self) -> bool:
        """Whether there is a function."""
        return self.op not in _UNSEEING

    @property
    def needs_old(self) -> bool:
        """What maps a table maps the value of before, too."""
        return self.maps_table

    @property
    def changes_key(self) -> bool:
        """Some do."""
        return self.op in _NEW_KEY

    @property
    def changes_value(self) -> bool:
        """Some do."""
        return self.op in _NEW_VALUE

    @property
    def passes_null_keys(self) -> bool:
        """All do that leave keys as they are."""
        return self.op not in _NEW_KEY

    @property
    def is_null_key_filter(self) -> bool:
        """One is."""
        return self.op == "null_key_filter"

    def keeping_null_keys(self) -> Node:
        """One that lets all pass, in the place of the filter."""
        return replace(self, op="pass") if self.is_null_key_filter else self

    @property
    def leaves_value_alone(self) -> bool:
        """Filters look at values, and change none."""
        return self.op in _HARMLESS

    @property
    def is_unseeing(self) -> bool:
        """Whether there is no function."""
        return self.op in _UNSEEING

    @property
    def keeps_nothing(self) -> bool:
        """Those of tables have to do with the rows before."""
        return not self.maps_table

    @property
    def maps_table(self) -> bool:
        """Filters and mappings of tables do."""
        return self.op != "pass" and not self.stream

    @property
    def word(self) -> str:
        """The operator."""
        return self.op


def _asked(name: str) -> Any:
    """What a node says as its spec does."""
    return property(attrgetter(f"spec.{name}"))


@dataclass(frozen=True, slots=True)
class Fused(Node):
    """Lets records of a stream go on as they are or not at all, as `spec` says in Python."""

    spec: FusedSpec = field(kw_only=True)

    serde_arguments = _asked("serde_arguments")
    reads_key = _asked("reads_key")
    reads_value = _asked("reads_value")

    def bound(self, binder: Binder) -> Node:
        """The same with what its spec makes of the serdes that it uses itself."""
        spec = self.spec.bound(binder.part)
        return self if spec == self.spec else replace(self, spec=spec)

    @property
    def passes_null_keys(self) -> bool:
        """Records stay as they are."""
        return True

    @property
    def leaves_value_alone(self) -> bool:
        """Records stay as they are."""
        return True

    @property
    def keeps_nothing(self) -> bool:
        """The same record gets the same answer each time."""
        return True


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """Sends each record to the child of the first predicate that holds; None always holds.

    ``children[i]`` is the name of the `Stateless` ``pass`` node behind ``predicates[i]``. A record
    for which none holds is dropped.
    """

    predicates: tuple[Function | None, ...] = ()
    children: tuple[str, ...] = ()

    @property
    def keeps_nothing(self) -> bool:
        """Predicates are asked about each record by itself."""
        return True

    @property
    def reads_key(self) -> bool:
        """Predicates are given it."""
        return True

    @property
    def reads_value(self) -> bool:
        """Predicates are given it."""
        return True

    @property
    def passes_null_keys(self) -> bool:
        """Records stay as they are."""
        return True


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """Folds a grouped stream into a table, one row a key, kept in `store`."""

    fold: Fold = field(kw_only=True)
    store: str = field(kw_only=True)

    @property
    def reads_key(self) -> bool:
        """Whether the fold is given the key."""
        return self.fold.reads_key

    @property
    def reads_value(self) -> bool:
        """Whether the fold is given the value."""
        return self.fold.reads_value

    @property
    def changes_value(self) -> bool:
        """The aggregate is what goes on."""
        return True

    @property
    def stores(self) -> tuple[str, ...]:
        """Its store."""
        return (self.store,)

    @property
    def is_table(self) -> bool:
        """It makes a table."""
        return True

    @property
    def tells_old(self) -> bool:
        """The row before."""
        return True

    @property
    def counts(self) -> bool:
        """Whether no function of the user's makes its value."""
        return not self.fold.asks_user

    @property
    def folds(self) -> Fold | None:
        """Its fold."""
        return self.fold

    @property
    def word(self) -> str:
        """The call that made it."""
        return self.fold.word

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        """The call that it comes from."""
        return f'{self.fold.word}(store="...")'


@dataclass(frozen=True, slots=True)
class TableSource(Node):
    """Keeps the last value of each key; a null value deletes. Without a store it only forwards."""

    store: str | None = None
    call: str | None = None
    """The call that it comes from, where that is none of `table` and `to_table`."""

    @property
    def reads_value(self) -> bool:
        """It compares the value with the one before."""
        return self.store is not None

    @property
    def stores(self) -> tuple[str, ...]:
        """Its store, if it has one."""
        return () if self.store is None else (self.store,)

    @property
    def reads_as_table(self) -> bool:
        """It does."""
        return True

    @property
    def is_table(self) -> bool:
        """It makes a table."""
        return True

    @property
    def tells_old(self) -> bool:
        """The row before, if rows are stored."""
        return self.store is not None

    @property
    def copies_into(self) -> str | None:
        """Its store."""
        return self.store

    def kept_in(self, store: str) -> Node:
        """The same table, stored."""
        return replace(self, store=store)

    def store_advice(self, *, reads_topic: bool) -> str:
        """The call that it comes from."""
        call = self.call or ("table" if reads_topic else "to_table")
        return f'{call}(store="...")'

    @property
    def repartition_advice(self) -> str:
        """The call that it comes from."""
        return 'to_table(name="...")'


@dataclass(frozen=True, slots=True)
class Operator(Node):
    """A step that runs as an object, one a task, made by `spec`, which speaks for it.

    `uses` names the stores that it reads or writes, its own ones first; `view_uses` those that
    must be at hand to read the rows of the table that it makes, if it makes one.
    """

    spec: OperatorSpec = field(kw_only=True)
    uses: tuple[str, ...] = ()
    view_uses: tuple[str, ...] = ()
    needs_key: bool = False
    """Whether a record without a key is one for the null-key policy, and never handed over."""
    reads_value: bool = True
    """Whether it reads the value; if not, it is given the bytes, or None for a null."""

    needs_old = _asked("needs_old")
    needs_record = _asked("needs_record")
    is_timed = _asked("is_timed")
    gathers = _asked("gathers")
    gives_up_order = _asked("gives_up_order")
    answer = _asked("answer")
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
    writes_outside = _asked("writes_outside")
    reads_directly = _asked("reads_directly")
    repartition_advice = _asked("repartition_advice")
    serde_arguments = _asked("serde_arguments")
    tells_old = _asked("is_table")

    def bound(self, binder: Binder) -> Node:
        """The same with what its spec makes of the serdes that it uses itself."""
        spec = self.spec.bound(binder.part)
        return self if spec is self.spec else replace(self, spec=spec)

    @property
    def reads_key(self) -> bool:
        """It is given the decoded key."""
        return True

    @property
    def changes_value(self) -> bool:
        """It makes records of its own."""
        return True

    @property
    def stores(self) -> tuple[str, ...]:
        """All that it uses."""
        return self.uses

    @property
    def view_stores(self) -> tuple[str, ...]:
        """Not always its own."""
        return self.view_uses

    def looks_anywhere(self, store: str) -> bool:
        """As its spec says."""
        return self.spec.looks_anywhere(store)

    def fills(self, store: str) -> bool:
        """As its spec says."""
        return self.spec.fills(store)

    def kept_in(self, store: str) -> Node:
        """The same, with a spec that keeps its rows."""
        spec = self.spec.kept_in(store)
        return replace(self, spec=spec, uses=(store, *self.uses), view_uses=(store,))

    def connected(self, stores: tuple[str, ...]) -> Self:
        """The same with more stores to use."""
        return replace(self, uses=tuple(dict.fromkeys((*self.uses, *stores))))

    def store_advice(self, *, reads_topic: bool) -> str:
        """As its spec says."""
        return self.spec.store_advice(reads_topic=reads_topic)


@dataclass(frozen=True, slots=True)
class GlobalTable(Node):
    """Keeps the last value of each key that its `GlobalSource` reads."""

    store: str = ""

    @property
    def is_global(self) -> bool:
        """It is."""
        return True

    @property
    def stores(self) -> tuple[str, ...]:
        """Its store."""
        return (self.store,)


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
