"""Builder of a topology: streams and tables read from topics, and `build`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import TypeVar

from headrace.topology.arguments import checked
from headrace.topology.checks.loops import refuse_loops, refuse_shared_sinks
from headrace.topology.dsl.global_table import GlobalKTable, global_table
from headrace.topology.dsl.kstream import KStream
from headrace.topology.dsl.ktable import KTable
from headrace.topology.dsl.steps.table_steps import table_node
from headrace.topology.graph.draft import Draft, Edge
from headrace.topology.graph.graph import OffsetReset, SourceNode
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.naming import legal_topic, legal_topics
from headrace.topology.processors.stores import StoreBuilder
from headrace.topology.serdes import Serde
from headrace.topology.timestamps import TimestampExtractor
from headrace.topology.topology import Topology

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)


@checked
class StreamsBuilder:
    """Builder of a topology's nodes and stores.

    Arguments that a method does not describe: `key` and `value` are the serdes of keys and values;
    None uses the settings ``default.key.serde`` and ``default.value.serde``. `name` is the name of
    the node; None generates one. All methods raise `TopologyError` if a name is not legal or is
    taken.

    Examples:
        >>> from headrace import serdes
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines", value=serdes.string)
        >>> lines.filter(lambda _, line: line != "").to("kept", value=serdes.string)
        >>> print(builder.build().describe().rstrip())
        Topologies:
           Sub-topology: 0
            Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
              --> KSTREAM-FILTER-0000000001
            Processor: KSTREAM-FILTER-0000000001 (stores: [])
              --> KSTREAM-SINK-0000000002
              <-- KSTREAM-SOURCE-0000000000
            Sink: KSTREAM-SINK-0000000002 (topic: kept)
              <-- KSTREAM-FILTER-0000000001
    """

    __slots__ = ("_draft",)

    def __init__(self) -> None:
        self._draft = Draft()

    def __repr__(self) -> str:
        return f"<StreamsBuilder: {self._draft}>"

    def stream(
        self,
        topics: str | Iterable[str],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        timestamps: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Read topics as a stream of records.

        Reading the same topics twice creates a single source with two downstream nodes.

        Args:
            topics: a topic, or a list of co-partitioned topics, such as ["orders", "returns"].
            timestamps: extracts the timestamp of each record (see `headrace.topology.timestamps`);
                None uses the setting ``default.timestamp.extractor``.
            offset_reset: "earliest" or "latest": the start offset of a partition without committed
                offset; None uses the setting ``consumer.auto.offset.reset``.
        """
        node = SourceNode(
            self._draft.names.node("KSTREAM-SOURCE-", name),
            topics=legal_topics(topics, "stream()"),
            key=key,
            value=value,
            timestamps=timestamps,
            offset_reset=offset_reset,
        )
        return KStream(Edge(self._draft, self._draft.add(node), key, value))

    def table(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        timestamps: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Read a topic as a table: the last value of each key; a null value deletes the row.

        Args:
            topic: the topic.
            store: name or options of the store; a table without a name is not stored.
            timestamps: see `stream`.
            offset_reset: see `stream`.
        """
        topic = legal_topic(topic, "table()")
        names = self._draft.names
        options = materialized(store)
        reserved = names.store(f"{topic}-") if options.store is None else options.store
        source_name = names.node("KSTREAM-SOURCE-", None if name is None else f"{name}-source")
        source = SourceNode(
            source_name,
            topics=(topic,),
            key=key,
            value=value,
            timestamps=timestamps,
            offset_reset=offset_reset,
        )
        node_name = names.node("KTABLE-SOURCE-", name)
        table, rows, stored = table_node(node_name, source_name, options, reserved, key, value)
        if not stored:
            self._draft.reserve(table.name, rows)
            return KTable(Edge(self._draft, self._draft.add(source, table), key, value))
        return KTable(Edge(self._draft, self._draft.add(source, table, store=rows), key, value))

    def global_table(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> GlobalKTable[K, V]:
        """Read a whole topic in every process, as a table that streams look up by any key.

        The rows are read to the topic's end before the first record of a stream is processed, and
        are updated from then on. They are not part of the commits: a lookup returns the current
        row, and may return another row if the record is processed again after a failure.

        Args:
            topic: the topic; no other node of the topology may read it.
            store: name or options of the store that keeps the rows; None generates a name.

        Examples:
            >>> builder = StreamsBuilder()
            >>> countries = builder.global_table("countries", store="countries")
            >>> print(builder.build().describe().rstrip())
            Topologies:
               Sub-topology: 0 for global store (will not generate tasks)
                Source: KSTREAM-SOURCE-0000000000 (topics: [countries])
                  --> KTABLE-SOURCE-0000000001
                Processor: KTABLE-SOURCE-0000000001 (stores: [countries])
                  --> none
                  <-- KSTREAM-SOURCE-0000000000
        """
        topic = legal_topic(topic, "global_table()")
        return global_table(self._draft, topic, key=key, value=value, store=store, name=name)

    def add_state_store(self, store: StoreBuilder[Any]) -> None:
        """Add a state store for processors; each processor names the stores that it uses.

        Args:
            store: created by `Stores`. The same store may be added again.

        Raises:
            TopologyError: another store of that name was added.

        Examples:
            >>> from headrace import serdes
            >>> from headrace.topology.processors.stores import Stores
            >>> builder = StreamsBuilder()
            >>> seen = Stores.key_value("seen", key=serdes.string, value=serdes.long)
            >>> builder.add_state_store(seen)
            >>> def once(record, context):
            ...     if context.store(seen).put_if_absent(record.key, record.timestamp) is None:
            ...         context.forward(record)
            >>> lines = builder.stream("lines", key=serdes.string, value=serdes.string)
            >>> kept = lines.process_values(once, stores=[seen], name="once")
            >>> kept.to("kept", value=serdes.string)
            >>> print(builder.build().describe().rstrip())
            Topologies:
               Sub-topology: 0
                Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
                  --> once
                Processor: once (stores: [seen])
                  --> KSTREAM-SINK-0000000001
                  <-- KSTREAM-SOURCE-0000000000
                Sink: KSTREAM-SINK-0000000001 (topic: kept)
                  <-- once
        """
        self._draft.add_state_stores((store,))

    def build(self) -> Topology:
        """Check the topology and return it.

        Returns:
            The topology; later calls on the builder do not change it.

        Raises:
            TopologyError: two stores or nodes have the same name, topics are read in two
                incompatible ways, records can return to the topic that they were read from, or a
                sink that reads a topic directly shares it.
        """
        steps = list(self._draft.steps())
        nodes = tuple(node for step in steps for node in step.nodes)
        refuse_loops(nodes)
        stores = (store for step in steps for store in step.stores)
        topology = Topology(nodes, (*stores, *self._draft.state_stores), self._draft.lines)
        refuse_shared_sinks(topology)
        return topology
