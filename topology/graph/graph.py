"""The logical graph: frozen nodes, their sub-topologies, and the topology that holds both.

Each DSL call adds nodes; nothing is edited in place. A node knows its parents by name, what it
computes (a user function, never called here) and the serdes at its edges. The compiler turns each
sub-topology into Python source; `describe` prints the same nodes as Kafka Streams does.

What flows along an edge is a record ``(key, value, timestamp, headers)``. Behind a table node
(`Aggregate`, `TableSource`) the value is the table's new value, ``None`` when the row is gone.

Internal topics are named here without the application id; the runtime puts it in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headrace.topology.context.context import OperatorSpec
from headrace.topology.errors import TopologyError
from headrace.topology.graph.fold import Fold
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde

if TYPE_CHECKING:
    pass

Function = Callable[..., Any]
AnySerde = Serde[Any]

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
OffsetReset = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a topology: its unique name and the names of the nodes that feed it."""

    name: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source(Node):
    """Reads topics. An `internal` source reads a repartition topic that this topology writes."""

    topics: tuple[str, ...] = ()
    key: AnySerde | None = None
    value: AnySerde | None = None
    internal: bool = False
    partitions: int | None = None
    """The partition count asked for, for a repartition topic; None takes it from upstream."""
    timestamps: Function | None = None
    """A timestamp extractor (see `headrace.topology.timestamps`); None takes the setting's."""
    offset_reset: OffsetReset | None = None
    """Where to begin without a committed offset; None takes the consumer's setting."""


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


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """Sends each record to the child of the first predicate that holds; None always holds.

    ``children[i]`` is the name of the `Stateless` ``pass`` node behind ``predicates[i]``. A record
    for which none holds is dropped.
    """

    predicates: tuple[Function | None, ...] = ()
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """Folds a grouped stream into a table, one row a key, kept in `store`."""

    fold: Fold = field(kw_only=True)
    store: str = field(kw_only=True)

    @property
    def op(self) -> str:
        """The call that made it."""
        return self.fold.word


@dataclass(frozen=True, slots=True)
class TableSource(Node):
    """Keeps the last value of each key; a null value deletes. Without a store it only forwards."""

    store: str | None = None


@dataclass(frozen=True, slots=True)
class Operator(Node):
    """A step that runs as an object, one a task, made by `spec` (see `operators.context`).

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


@dataclass(frozen=True, slots=True)
class GlobalSource(Node):
    """Reads the topic of a global table: all of it, in every process, and in no task."""

    topic: str = ""
    key: AnySerde | None = None
    value: AnySerde | None = None


@dataclass(frozen=True, slots=True)
class GlobalTable(Node):
    """Keeps the last value of each key that its `GlobalSource` reads."""

    store: str = ""


@dataclass(frozen=True, slots=True)
class Sink(Node):
    """Writes records to `topic`, or to the topic that ``topic(key, value)`` returns."""

    topic: str | Callable[[Any, Any], str] = ""
    key: AnySerde | None = None
    value: AnySerde | None = None
    internal: bool = False
    partitioner: Function | None = None
    """Called as ``partitioner(topic, key, value, partitions)`` (see `operators.sink`)."""


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that are connected by more than a topic; one task runs it for each partition."""

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in the order in which they were built."""
        return tuple(n for n in self.nodes if isinstance(n, Source))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks, in the order in which they were built."""
        return tuple(n for n in self.nodes if isinstance(n, Sink))

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
    sub_topologies: tuple[SubTopology, ...] = field(init=False)
    global_stores: tuple[GlobalStore, ...] = field(init=False)

    def __post_init__(self) -> None:
        check(self.nodes, self.stores)
        groups = split(self.nodes, self.stores)
        subs = tuple(group for group in groups if group.sources)
        object.__setattr__(self, "sub_topologies", subs)
        apart = tuple(_global_store(group) for group in groups if not group.sources)
        object.__setattr__(self, "global_stores", apart)


G = TypeVar("G", bound=Graph)
"""A graph of one's own class, such as a `Topology`."""


def check(nodes: Iterable[Node], stores: Iterable[Store]) -> None:
    """Refuse duplicate names, unknown parents and unknown or unused stores.

    Raises:
        TopologyError: naming the node or store, and what to change.
    """
    nodes = tuple(nodes)
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise TopologyError(
                f"two nodes are named {node.name!r}; give one of them another name="
            )
        for parent in node.parents:
            if parent not in seen:
                raise TopologyError(f"node {node.name!r} reads from unknown node {parent!r}")
        seen.add(node.name)
    _check_global_topics(nodes)
    names = [store.name for store in stores]
    for name in names:
        if names.count(name) > 1:
            raise TopologyError(f"two stores are named {name!r}; give one of them another store=")
    for node in nodes:
        used = stores_of(node)
        for name in used:
            if name not in names:
                raise TopologyError(f"node {node.name!r} uses unknown store {name!r}")


def _check_global_topics(nodes: Iterable[Node]) -> None:
    nodes = tuple(nodes)
    readers: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, GlobalSource):
            if node.topic in readers:
                raise TopologyError(
                    f"topic {node.topic!r} is read as a global table twice; call global_table() "
                    "once and join with what it returns"
                )
            readers[node.topic] = node.name
    for node in nodes:
        if isinstance(node, Source) and not node.internal:
            for topic in node.topics:
                if topic in readers:
                    raise TopologyError(
                        f"topic {topic!r} is read as a global table and by {node.name!r} too; "
                        "read it once, or join with the table where the stream was to be used"
                    )


def stores_of(node: Node) -> tuple[str, ...]:
    """The names of the stores that a node reads or writes."""
    if isinstance(node, (Aggregate, GlobalTable)):
        return (node.store,)
    if isinstance(node, TableSource) and node.store is not None:
        return (node.store,)
    if isinstance(node, Operator):
        return node.uses
    return ()


def tells_old(nodes: Mapping[str, Node], name: str) -> bool:
    """Whether a node says with each change which value it forwarded before.

    Tables do, as far as they are stored or computed from one that is; streams do not.
    """
    node = nodes[name]
    if isinstance(node, TableSource):
        return node.store is not None
    if isinstance(node, Operator):
        return node.spec.is_table
    if isinstance(node, Stateless) and node.op != "pass" and not node.stream:
        return tells_old(nodes, node.parents[0])
    return isinstance(node, Aggregate)


def is_versioned(nodes: Mapping[str, Node], name: str) -> bool:
    """Whether a node is a table that may forward changes out of order (`operators.versioned`).

    Tables with versions are, and those that are filtered or mapped from one.
    """
    node = nodes[name]
    if isinstance(node, Operator):
        return getattr(node.spec, "is_versioned", False)
    if isinstance(node, Stateless) and node.op != "pass" and not node.stream:
        return is_versioned(nodes, node.parents[0])
    return False


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
        for store in stores_of(node):
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
    table = next((node for node in group if isinstance(node, GlobalTable)), None)
    if table is not None:
        other = next((n for n in group if not isinstance(n, (GlobalSource, GlobalTable))), None)
        if other is not None:
            raise TopologyError(
                f"node {other.name!r} uses store {table.store!r}, which belongs to the global "
                f"table {table.name!r} and is written by nobody else; give it a store of its own"
            )
    elif not any(isinstance(node, Source) for node in group):
        raise TopologyError(f"node {group[0].name!r} is not fed by any source")


def _global_store(group: SubTopology) -> GlobalStore:
    source, table = group.nodes
    assert isinstance(source, GlobalSource)
    assert isinstance(table, GlobalTable)
    (store,) = group.stores
    return GlobalStore(group.id, source, table, store)


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
