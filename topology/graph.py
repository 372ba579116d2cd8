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
from typing import TYPE_CHECKING, Any, Literal

from headrace.state.spec import StoreSpec
from headrace.topology.arguments import checked
from headrace.topology.errors import TopologyError
from headrace.topology.operators.context import OperatorSpec
from headrace.topology.serdes import Serde

if TYPE_CHECKING:
    from headrace.topology.stores import StoreBuilder
    from headrace.topology.timestamps import TimestampExtractor

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
AggregateOp = Literal["count", "reduce", "aggregate"]
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
    """Folds a grouped stream into a table, one row a key, kept in `store`.

    `function` is ``reducer(old, value)`` for reduce and ``aggregator(key, value, aggregate)`` for
    aggregate; count needs none. A result of None deletes the row.
    """

    op: AggregateOp = "count"
    store: str = ""
    initializer: Callable[[], Any] | None = None
    function: Function | None = None


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
class Store:
    """A store of the topology: its spec and the serdes of its keys and values."""

    spec: StoreSpec
    key: AnySerde | None = None
    value: AnySerde | None = None
    face: Function | None = None
    """Makes what a processor sees of it (see `stores.open_store`); None goes by the layout."""
    source_topic: str | None = None
    """The topic that its rows are read from, if that is its changelog too (see `optimizer`)."""

    @property
    def name(self) -> str:
        """The store's name, unique in the topology."""
        return self.spec.name


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


@checked
@dataclass(frozen=True, slots=True, repr=False)
class Topology:
    """What an application computes: nodes in the order in which they were built, and stores.

    The DSL makes one; others are built node by node, or continue one of the DSL.
    """

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

    def describe(self, *, code: bool = False) -> str:
        """Print the sub-topologies as Kafka Streams does; with `code`, the generated source too.

        Args:
            code: append the Python source that the compiler makes of each sub-topology.

        Returns:
            The description, ready to print.
        """
        from headrace.topology.describe import describe  # describe reads this module's classes

        return describe(self, code=code)

    def to_mermaid(self) -> str:
        """Draw the topology as a Mermaid flowchart.

        Returns:
            Its text, for a ``mermaid`` block of a Markdown page.

        Example:
            >>> topology = Topology().add_source("read", "lines").add_sink("write", "out", "read")
            >>> print(topology.to_mermaid())
            flowchart TD
              topic1[/"lines"/]
              topic3[/"out"/]
              subgraph lane0["Sub-topology 0"]
                step0["read"]
                step2["write"]
              end
              topic1 --> step0
              step0 --> step2
              step2 --> topic3
            <BLANKLINE>
        """
        from headrace.topology.mermaid import to_mermaid

        return to_mermaid(self)

    def to_svg(self) -> str:
        """Draw the topology as a picture.

        Returns:
            An ``<svg>`` element, which is a file of its own as well.

        Example:
            >>> Topology().add_source("read", "lines").add_sink("write", "out", "read").to_svg()[:4]
            '<svg'
        """
        from headrace.topology.drawing import to_svg

        return to_svg(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.to_svg()

    def __repr__(self) -> str:
        read = [topic for sub in self.sub_topologies for n in sub.sources for topic in n.topics]
        written = [n.topic for sub in self.sub_topologies for n in sub.sinks]
        outside = [t for t in written if isinstance(t, str) and t not in read]
        parts = [
            f"{len(self.sub_topologies)} sub-topologies",
            f"reads {', '.join(t for t in dict.fromkeys(read) if t not in written) or 'nothing'}",
            f"writes {', '.join(dict.fromkeys(outside)) or 'nothing'}",
        ]
        kept = ", ".join(store.name for store in self.stores)
        return f"<Topology: {'; '.join(parts)}{f'; keeps {kept}' if kept else ''}>"

    # -- node by node ------------------------------------------------------------------------

    def add_source(
        self,
        name: str,
        *topics: str,
        key: AnySerde | None = None,
        value: AnySerde | None = None,
        timestamps: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
    ) -> Topology:
        """Add a node that reads topics; returns the new topology, and leaves this one.

        Args:
            name: of the node.
            topics: one, or several that are partitioned alike.
            key: serde of keys; None takes the setting ``default.key.serde``.
            value: serde of values; None takes the setting ``default.value.serde``.
            timestamps: tells the time of each record; None takes the setting
                ``default.timestamp.extractor``.
            offset_reset: "earliest" or "latest": where to begin with a partition of which nothing
                was committed; None takes the setting ``consumer.auto.offset.reset``.

        Raises:
            TopologyError: a name is not legal or is taken, or a topic is read already.

        >>> from headrace import serdes
        >>> topology = Topology().add_source("read", "lines", value=serdes.string)
        >>> print(topology.add_sink("write", "out", "read").describe().rstrip())
        Topologies:
           Sub-topology: 0
            Source: read (topics: [lines])
              --> write
            Sink: write (topic: out)
              <-- read
        """
        from headrace.topology.processor_topology import (
            with_source,  # it reads this module's classes
        )

        return with_source(self, name, topics, key, value, timestamps, offset_reset)

    def add_processor(
        self, name: str, supplier: Callable[..., Any], *parents: str, stores: Iterable[Any] = ()
    ) -> Topology:
        """Add a node that runs processors; returns the new topology, and leaves this one.

        Args:
            name: of the node.
            supplier: makes a new processor in each call, or is a function that is called as
                ``function(record, context)``; see `KStream.process`.
            parents: the nodes that feed it, those of the DSL by their names in `describe`.
            stores: what it works with: names of stores that are there, or what describes them,
                which are added.

        Raises:
            TopologyError: a name is not legal, is taken or is not there.

        >>> def upper(record, context):
        ...     context.forward(record.with_value(record.value.upper()), to="write")
        >>> topology = Topology().add_source("read", "lines").add_processor("up", upper, "read")
        >>> [node.name for node in topology.add_sink("write", "out", "up").nodes]
        ['read', 'up', 'write']
        """
        from headrace.topology.processor_topology import with_processor

        return with_processor(self, name, supplier, parents, stores)

    def add_sink(
        self,
        name: str,
        topic: str | Callable[[Any, Any], str],
        *parents: str,
        key: AnySerde | None = None,
        value: AnySerde | None = None,
        partitioner: Function | None = None,
    ) -> Topology:
        """Add a node that writes to a topic; returns the new topology, and leaves this one.

        Args:
            name: of the node.
            topic: the topic, or a function that is called as ``topic(key, value)`` and returns it.
            parents: the nodes that feed it.
            key: serde of keys; None takes the setting ``default.key.serde``.
            value: serde of values; None takes the setting ``default.value.serde``.
            partitioner: called as ``partitioner(topic, key, value, partitions)``; returns a
                partition, several, none, or None for that of the key.

        Raises:
            TopologyError: a name is not legal, is taken or is not there.

        >>> Topology().add_source("read", "in").add_sink("write", "out", "read").nodes[-1].topic
        'out'
        """
        from headrace.topology.processor_topology import with_sink

        return with_sink(self, name, topic, parents, key, value, partitioner)

    def add_state_store(self, store: StoreBuilder[Any], *processors: str) -> Topology:
        """Add a store; returns the new topology, and leaves this one.

        Args:
            store: made by `Stores`.
            processors: the nodes to connect with it.

        Raises:
            TopologyError: another store of that name is there, or a node is no processor.

        >>> from headrace.topology.stores import Stores
        >>> def count(record, context):
        ...     seen = context.store("seen")
        ...     seen.put(record.key, (seen.get(record.key) or 0) + 1)
        >>> topology = Topology().add_source("read", "in").add_processor("count", count, "read")
        >>> topology = topology.add_state_store(Stores.key_value("seen"), "count")
        >>> [store.name for store in topology.sub_topologies[0].stores]
        ['seen']
        """
        from headrace.topology.processor_topology import with_state_store

        return with_state_store(self, store, processors)

    def add_read_only_state_store(
        self, store: StoreBuilder[Any], topic: str, *, source: str, processor: str
    ) -> Topology:
        """Add a store of the last value of each key of a topic; returns the new topology.

        The topic is the store's changelog too, so it must be compacted and none is made (KIP-813).
        Processors that are connected with the store read it.

        Args:
            store: made by `Stores.key_value`; its serdes read the topic.
            topic: read from its beginning; a null value deletes.
            source: the name of the node that reads it.
            processor: the name of the node that keeps the rows.

        Raises:
            TopologyError: the store is of another kind or unlogged, the topic is read already, or
                a name is taken.

        >>> from headrace.topology.stores import Stores
        >>> def price(record, context):
        ...     context.forward(record.with_value(context.store("prices").get(record.key)))
        >>> topology = Topology().add_read_only_state_store(
        ...     Stores.key_value("prices"), "prices", source="read-prices", processor="keep-prices"
        ... )
        >>> topology = topology.add_source("read", "orders").add_processor("price", price, "read")
        >>> topology = topology.connect_processor_and_state_stores("price", "prices")
        >>> len(topology.sub_topologies)
        1
        """
        from headrace.topology.processor_topology import with_read_only_state_store

        return with_read_only_state_store(self, store, topic, source, processor)

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        """Let a processor use stores, those of tables included; returns the new topology.

        Processors that use the same store are in one sub-topology.

        Args:
            processor: the name of its node.
            stores: names of stores that are there.

        Raises:
            TopologyError: there is no such processor or store.

        >>> from headrace.topology.stores import Stores
        >>> def keep(record, context):
        ...     context.store("rows").put(record.key, record.value)
        >>> topology = Topology().add_source("a", "a").add_source("b", "b")
        >>> topology = topology.add_processor("keep-a", keep, "a")
        >>> topology = topology.add_processor("keep-b", keep, "b")
        >>> topology = topology.add_state_store(Stores.key_value("rows"), "keep-a")
        >>> len(topology.sub_topologies)
        2
        >>> joined = topology.connect_processor_and_state_stores("keep-b", "rows")
        >>> len(joined.sub_topologies)
        1
        """
        from headrace.topology.processor_topology import connected

        return connected(self, processor, stores)


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
