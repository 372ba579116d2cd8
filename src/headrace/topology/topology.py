"""Topology: the graph, its description, and methods that add nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from headrace.topology.arguments import checked
from headrace.topology.describe.describe import RunSettings, describe
from headrace.topology.describe.picture import to_mermaid, to_svg
from headrace.topology.errors import TopologyError
from headrace.topology.functions import at_lines, with_lines
from headrace.topology.graph.graph import (
    AnySerde,
    Function,
    Graph,
    Node,
    OffsetReset,
    OperatorNode,
    Sink,
    SourceNode,
    TableSource,
)
from headrace.topology.naming import legal_topics, require_legal_name
from headrace.topology.operators.process import ProcessorSpec, processor_supplier
from headrace.topology.processors.store_wrappers import KeyValueStore, ReadOnlyKeyValueStore
from headrace.topology.processors.stores import StoreBuilder, store_names, with_stores
from headrace.topology.timestamps import TimestampExtractor


@checked
@dataclass(frozen=True, slots=True, repr=False)
class Topology(Graph):
    """Nodes of an application, in the order in which they were added, and its stores.

    It is created by `StreamsBuilder.build`, or node by node; nodes can be added to a topology of
    the DSL, too. The methods that add to it return a new topology; this topology does not change.
    They raise `TopologyError` if a name is not legal, is taken or does not exist.
    """

    def describe(self, *, code: bool = False, config: RunSettings | None = None) -> str:
        """Return the description of the sub-topologies as in Kafka Streams, optionally with
        generated code.

        Args:
            code: whether to append the Python source that the compiler generates for each
                sub-topology.
            config: the settings that it will run with, as returned by `StreamsConfig.parse`, or the
                `config` of an application; None uses the defaults.

        Raises:
            TopologyError: the config has another type, such as a dict of unchecked settings.

        Examples:
            >>> from headrace import StreamsConfig
            >>> topology = Topology().add_source("read", "in").add_sink("write", "out", "read")
            >>> config = StreamsConfig.parse({
            ...     "application.id": "copy", "bootstrap.servers": "localhost:9092",
            ...     "default.key.serde": "bytes", "deserialization.exception.handler": "continue"})
            >>> "except Exception" in topology.describe(code=True, config=config)
            True
        """
        return describe(self, code=code, config=config)

    def to_mermaid(self) -> str:
        """Draw the topology as a Mermaid flowchart, for a ``mermaid`` block of a Markdown page.

        Examples:
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
        return to_mermaid(self)

    def to_svg(self) -> str:
        """Draw the topology as an ``<svg>`` element, which is also a valid file.

        Examples:
            >>> Topology().add_source("read", "lines").add_sink("write", "out", "read").to_svg()[:4]
            '<svg'
        """
        return to_svg(self)

    def _repr_html_(self) -> str:
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
        stored = ", ".join(store.name for store in self.stores)
        return f"<Topology: {'; '.join(parts)}{f'; keeps {stored}' if stored else ''}>"

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
        """Add a node that reads topics.

        Args:
            name: name of the node.
            topics: a topic, or several co-partitioned topics.
            key: serde of keys; None uses the setting ``default.key.serde``.
            value: serde of values; None uses the setting ``default.value.serde``.
            timestamps: extracts the timestamp of each record; None uses the setting
                ``default.timestamp.extractor``.
            offset_reset: "earliest" or "latest": the start offset of a partition without committed
                offset; None uses the setting ``consumer.auto.offset.reset``.

        Raises:
            TopologyError: a topic is already read.

        Examples:
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
        names = legal_topics(topics, "add_source()")
        for node in self.nodes:
            for topic in set(names).intersection(node.reads_topics):
                raise TopologyError(
                    f"topic {topic!r} is read by node {node.name!r} "
                    f"already{at_lines(self.lines, 'node', node.name)}; use that node as the "
                    "parent, because a topic is read only once"
                )
        source = SourceNode(
            require_legal_name(name),
            topics=names,
            key=key,
            value=value,
            timestamps=timestamps,
            offset_reset=offset_reset,
        )
        return self._with(source)

    def add_processor(
        self, name: str, supplier: Callable[..., Any], *parents: str, stores: Iterable[Any] = ()
    ) -> Topology:
        """Add a node that runs processors.

        Args:
            name: name of the node.
            supplier: returns a new processor in each call, or is a function that is called as
                ``function(record, context)``; see `KStream.process`.
            parents: names of the upstream nodes; nodes of the DSL have the names in `describe`.
            stores: stores of the processor: names of existing stores, or store builders, whose
                stores are added.

        Examples:
            >>> def upper(record, context):
            ...     context.forward(record.with_value(record.value.upper()), to="write")
            >>> topology = Topology().add_source("read", "lines").add_processor("up", upper, "read")
            >>> [node.name for node in topology.add_sink("write", "out", "up").nodes]
            ['read', 'up', 'write']
        """
        processor = processor_supplier(supplier)
        builders = (*stores, *processor.stores)
        node = OperatorNode(
            require_legal_name(name),
            self._known(name, parents),
            spec=ProcessorSpec(processor.supplier),
            uses=store_names(builders),
        )
        added, lines = with_stores(self.stores, builders, self.lines)
        return replace(self, stores=added, lines=lines)._with(node)

    def add_sink(
        self,
        name: str,
        topic: str | Callable[[Any, Any], str],
        *parents: str,
        key: AnySerde | None = None,
        value: AnySerde | None = None,
        partitioner: Function | None = None,
    ) -> Topology:
        """Add a node that writes to a topic.

        Args:
            name: name of the node.
            topic: the topic, or a function that is called as ``topic(key, value)`` and returns it.
            parents: names of the upstream nodes.
            key: see `add_source`.
            value: see `add_source`.
            partitioner: see `KStream.to`.

        Examples:
            >>> Topology().add_source("read", "in").add_sink("write", "out", "read").nodes[-1].topic
            'out'
        """
        target = topic if callable(topic) else require_legal_name(topic, "topic")
        above = self._known(name, parents)
        return self._with(
            Sink(require_legal_name(name), above, target, key, value, partitioner=partitioner)
        )

    def add_state_store(self, store: StoreBuilder[Any], *processors: str) -> Topology:
        """Add a store, created by `Stores`, and connect processors to it by their nodes' names.

        Examples:
            >>> from headrace.topology.processors.stores import Stores
            >>> def count(record, context):
            ...     seen = context.store("seen")
            ...     seen.put(record.key, (seen.get(record.key) or 0) + 1)
            >>> topology = Topology().add_source("read", "in").add_processor("count", count, "read")
            >>> topology = topology.add_state_store(Stores.key_value("seen"), "count")
            >>> [store.name for store in topology.sub_topologies[0].stores]
            ['seen']
        """
        stores, lines = with_stores(self.stores, (store,), self.lines)
        added = replace(self, stores=stores, lines=lines)
        for processor in processors:
            added = added.connect_processor_and_state_stores(processor, store.name)
        return added

    def add_read_only_state_store(
        self, store: StoreBuilder[Any], topic: str, *, source: str, processor: str
    ) -> Topology:
        """Add a read-only store of the last value of each key of a topic.

        The topic is also the store's changelog, so it must be compacted, and no changelog topic is
        created (KIP-813). Processors that are connected to the store can read it.

        Args:
            store: created by `Stores.key_value`; its serdes decode the topic.
            topic: the topic, read from its beginning; a null value deletes the row.
            source: name of the node that reads the topic.
            processor: name of the node that writes the rows.

        Raises:
            TopologyError: the store is of another kind or not logged, or the topic is already read.

        Examples:
            >>> from headrace.topology.processors.stores import Stores
            >>> def price(record, context):
            ...     context.forward(record.with_value(context.store("prices").get(record.key)))
            >>> topology = Topology().add_read_only_state_store(
            ...     Stores.key_value("prices"), "prices",
            ...     source="read-prices", processor="keep-prices",
            ... )
            >>> topology = topology.add_source("read", "orders")
            >>> topology = topology.add_processor("price", price, "read")
            >>> topology = topology.connect_processor_and_state_stores("price", "prices")
            >>> len(topology.sub_topologies)
            1
        """
        stored = store.store
        if stored.factory is not KeyValueStore:
            raise TopologyError(
                f"store {store.name!r} cannot be filled from a topic; create it with "
                "Stores.key_value"
            )
        if not stored.spec.logged:
            raise TopologyError(
                f"store {store.name!r} is restored from topic {topic!r}, so logged=False has no "
                "effect; omit it: no changelog topic is created"
            )
        read = self.add_source(
            source, topic, key=stored.key, value=stored.value, offset_reset="earliest"
        )
        rows = replace(stored, source_topic=topic, factory=ReadOnlyKeyValueStore)
        lines = with_lines(read.lines, "store", (store.name,))
        if any(existing.name == store.name for existing in self.stores):
            raise TopologyError(
                f"two stores are named {store.name!r}{at_lines(lines, 'store', store.name)}; "
                "give either store another name"
            )
        node = TableSource(require_legal_name(processor), (source,), store.name)
        return replace(read, stores=(*read.stores, rows), lines=lines)._with(node)

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        """Connect a processor's node with existing stores, including stores of tables.

        Processors that use the same store are in the same sub-topology.

        Examples:
            >>> from headrace.topology.processors.stores import Stores
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
        if not stores:
            raise TopologyError(
                f"no store was given to connect {processor!r} with; pass the name of a store"
            )
        matching = [node for node in self.nodes if node.name == processor]
        if not matching:
            raise TopologyError(
                f"there is no processor {processor!r} to connect with {stores[0]!r}"
            )
        node = matching[0]
        if not node.is_processor:
            raise TopologyError(
                f"node {processor!r} is not a custom processor, so it cannot be given a store"
            )
        names = {store.name for store in self.stores}
        for store in stores:
            if store not in names:
                raise TopologyError(
                    f"there is no store {store!r} to connect {processor!r} with; add it first"
                )
        connected = cast("OperatorNode", node).connected(stores)
        nodes = tuple(connected if n is node else n for n in self.nodes)
        return replace(self, nodes=nodes)

    def _with(self, node: Node) -> Topology:
        lines = with_lines(self.lines, "node", (node.name,))
        return replace(self, nodes=(*self.nodes, node), lines=lines)

    def _known(self, name: str, parents: tuple[str, ...]) -> tuple[str, ...]:
        if not parents:
            raise TopologyError(f"node {name!r} requires a parent; name the nodes upstream")
        nodes = {node.name: node for node in self.nodes}
        for parent in parents:
            if parent not in nodes:
                raise TopologyError(
                    f"parent {parent!r} of node {name!r} does not exist; correct its name"
                )
            if nodes[parent].as_sink is not None:
                raise TopologyError(
                    f"parent {parent!r} of node {name!r} is a sink, which forwards no records; "
                    "name another parent"
                )
        return tuple(dict.fromkeys(parents))
