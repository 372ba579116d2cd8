"""A topology: the graph with all that one asks of it, and adds to it node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.topology.arguments import checked
from headrace.topology.graph.graph import AnySerde, Function, Graph, OffsetReset
from headrace.topology.processor_topology import (
    connected,
    with_processor,
    with_read_only_state_store,
    with_sink,
    with_source,
    with_state_store,
)
from headrace.topology.processors.stores import StoreBuilder
from headrace.topology.show.describe import RunSettings, describe
from headrace.topology.show.drawing import to_svg
from headrace.topology.show.mermaid import to_mermaid
from headrace.topology.timestamps import TimestampExtractor


@checked
@dataclass(frozen=True, slots=True, repr=False)
class Topology(Graph):
    """What an application computes: nodes in the order in which they were built, and stores.

    The DSL makes one; others are built node by node, or continue one of the DSL.
    """

    def describe(self, *, code: bool = False, config: RunSettings | None = None) -> str:
        """Print the sub-topologies as Kafka Streams does; with `code`, the generated source too.

        Args:
            code: append the Python source that the compiler makes of each sub-topology.
            config: what it is to run with, as `StreamsConfig.parse` makes it of settings, or the
                `config` of an application; None stands for the defaults.

        Returns:
            The description, ready to print.

        Raises:
            TopologyError: the config is none, such as settings that nobody has checked.

        Example:
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
        return to_mermaid(self)

    def to_svg(self) -> str:
        """Draw the topology as a picture.

        Returns:
            An ``<svg>`` element, which is a file of its own as well.

        Example:
            >>> Topology().add_source("read", "lines").add_sink("write", "out", "read").to_svg()[:4]
            '<svg'
        """
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
                partition, several in a list, an empty list to write nowhere, or None for that of
                the key.

        Raises:
            TopologyError: a name is not legal, is taken or is not there.

        >>> Topology().add_source("read", "in").add_sink("write", "out", "read").nodes[-1].topic
        'out'
        """
        return with_sink(self, name, topic, parents, key, value, partitioner)

    def add_state_store(self, store: StoreBuilder[Any], *processors: str) -> Topology:
        """Add a store; returns the new topology, and leaves this one.

        Args:
            store: made by `Stores`.
            processors: the nodes to connect with it.

        Raises:
            TopologyError: another store of that name is there, or a node is no processor.

        >>> from headrace.topology.processors.stores import Stores
        >>> def count(record, context):
        ...     seen = context.store("seen")
        ...     seen.put(record.key, (seen.get(record.key) or 0) + 1)
        >>> topology = Topology().add_source("read", "in").add_processor("count", count, "read")
        >>> topology = topology.add_state_store(Stores.key_value("seen"), "count")
        >>> [store.name for store in topology.sub_topologies[0].stores]
        ['seen']
        """
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

        >>> from headrace.topology.processors.stores import Stores
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
        return with_read_only_state_store(self, store, topic, source, processor)

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        """Let a processor use stores, those of tables included; returns the new topology.

        Processors that use the same store are in one sub-topology.

        Args:
            processor: the name of its node.
            stores: names of stores that are there.

        Raises:
            TopologyError: there is no such processor or store.

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
        return connected(self, processor, stores)
