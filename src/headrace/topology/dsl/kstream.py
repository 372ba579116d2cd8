"""A stream of records, and what can be done with each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, Literal, Unpack, overload

from typing_extensions import TypeVar

from headrace.topology.arguments import checked
from headrace.topology.context.calls import Retry
from headrace.topology.dsl import branched, grouped, ktable
from headrace.topology.dsl.global_table import GlobalKTable
from headrace.topology.dsl.join_options import OuterJoinOptions, StreamJoinOptions, TableJoinOptions
from headrace.topology.dsl.steps.calls import (
    CallOptions,
    Calls,
    OnError,
    called_for_batches,
    called_for_each,
)
from headrace.topology.dsl.steps.dead_letters import add_dead_letters
from headrace.topology.dsl.steps.external_sink import add_external_sink
from headrace.topology.dsl.steps.fewer_records import Deduplication, deduplicated, sampled
from headrace.topology.dsl.steps.global_join import global_join
from headrace.topology.dsl.steps.join_nodes import (
    JoinKind,
    StreamJoin,
    add_stream_join,
    add_table_join,
    table_lookup,
)
from headrace.topology.dsl.steps.late import Late
from headrace.topology.dsl.steps.table_nodes import (
    AnyStore,
    ProcessorOptions,
    merged,
    process_step,
    to_table,
)
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Function, Sink, Stateless, StatelessOp
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.naming import legal
from headrace.topology.operators.frames import Form
from headrace.topology.operators.joins.stream_join import LateMatch
from headrace.topology.operators.map_async import Order
from headrace.topology.operators.sample import By
from headrace.topology.processors.processors import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    Record,
)
from headrace.topology.serdes import Serde
from headrace.topology.windows import JoinWindows

K = TypeVar("K")
V = TypeVar("V")
NO_GRACE = timedelta(0)


R = TypeVar("R")
K2 = TypeVar("K2", default=Any)
V2 = TypeVar("V2", default=Any)
"""Nobody knows what a lambda forwards: then they are Any."""


TIMEOUT = timedelta(seconds=5)
"""Shorter than a transaction lives by default."""


"""Nobody knows what a lambda forwards: then they are Any."""


@checked
class KStream(Generic[K, V]):
    """Records, one after the other; each method adds a step behind this stream.

    Functions take ``(key, value)``; those of the ``*_values`` steps take the value alone, unless
    ``with_key`` is set. They must not change what they are given. A stream may have several
    followers: each of them sees every record.

    >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines", value=serdes.string)
    >>> words = lines.flat_map_values(str.split, name="split")
    >>> by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    >>> by_word.count(store="counts", name="count").to_stream().to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("lines").send(None, "to be or not to be")
    ...     dict(driver.store("counts"))
    {'be': 2, 'not': 1, 'or': 1, 'to': 2}
    """

    __slots__ = ("_edge",)

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def __repr__(self) -> str:
        return f"<KStream of {self._edge}>"

    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KStream[K, V]:
        """Keep the records for which the predicate holds.

        Args:
            predicate: called as ``predicate(key, value)``.
            name: name of the node; None generates one.
        """
        return KStream(self._added("filter", "FILTER", predicate, name))

    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KStream[K, V]:
        """Keep the records for which the predicate does not hold.

        Args:
            predicate: called as ``predicate(key, value)``.
            name: name of the node; None generates one.
        """
        return KStream(self._added("filter_not", "FILTER", predicate, name))

    def map(
        self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Make another record of each.

        Args:
            mapper: called as ``mapper(key, value)``, returns the new key and value.
            name: name of the node; None generates one.
        """
        edge = self._added("map", "MAP", mapper, name)
        return KStream(replace(edge, key=None, value=None, rekeyed=True))

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, with_key: Literal[True], name: str | None = None
    ) -> KStream[K, V2]: ...

    def map_values(
        self, mapper: Callable[..., V2], *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, V2]:
        """Make another value of each; the key stays, so nothing is partitioned anew.

        Args:
            mapper: called as ``mapper(value)``.
            with_key: call ``mapper(key, value)`` instead.
            name: name of the node; None generates one.
        """
        edge = self._added("map_values", "MAPVALUES", mapper, name, with_key=with_key)
        return KStream(replace(edge, value=None))

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Make any number of records of each.

        Args:
            mapper: called as ``mapper(key, value)``, returns pairs of a key and a value.
            name: name of the node; None generates one.
        """
        edge = self._added("flat_map", "FLATMAP", mapper, name)
        return KStream(replace(edge, key=None, value=None, rekeyed=True))

    @overload
    def flat_map_values(
        self,
        mapper: Callable[[V], Iterable[V2]],
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values(
        self,
        mapper: Callable[[K, V], Iterable[V2]],
        *,
        with_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, V2]: ...

    def flat_map_values(
        self,
        mapper: Callable[..., Iterable[V2]],
        *,
        with_key: bool = False,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Make any number of values of each, all under the same key.

        Args:
            mapper: called as ``mapper(value)``, returns values.
            with_key: call ``mapper(key, value)`` instead.
            name: name of the node; None generates one.
        """
        edge = self._added("flat_map_values", "FLATMAPVALUES", mapper, name, with_key=with_key)
        return KStream(replace(edge, value=None))

    def select_key(
        self, mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> KStream[K2, V]:
        """Give each record another key.

        Args:
            mapper: called as ``mapper(key, value)``, returns the new key.
            name: name of the node; None generates one.
        """
        edge = self._added("select_key", "KEY-SELECT", mapper, name)
        return KStream(replace(edge, key=None, rekeyed=True))

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Do something with each record and let it pass.

        Args:
            action: called as ``action(key, value)``; called again where a record is processed
                again after a failure.
            name: name of the node; None generates one.
        """
        return KStream(self._added("peek", "PEEK", action, name))

    def for_each(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Do something with each record; nothing can follow.

        Args:
            action: called as ``action(key, value)``; called again where a record is processed
                again after a failure.
            name: name of the node; None generates one.
        """
        self._added("for_each", "FOREACH", action, name)

    def print(self, *, label: str | None = None, name: str | None = None) -> None:
        """Write each record to the standard output, as ``[label]: key, value``.

        Args:
            label: what stands in front; None takes the name of the node that comes before.
            name: name of the node; None generates one.
        """
        self._added(
            "print", "PRINTER", None, name, label=self._edge.node if label is None else label
        )

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Put two streams into one; the order between them is not defined.

        Args:
            other: a stream of the same builder.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the other stream comes from another builder.
        """
        return KStream(merged(self._edge, other._edge, name))

    def split(self, *, name: str | None = None) -> branched.BranchedKStream[K, V]:
        """Begin to send each record to one of several streams.

        Args:
            name: what the names of the branches begin with; None generates it.

        Returns:
            What the branches are added to.
        """
        return branched.BranchedKStream(self._edge, name)

    def repartition(
        self,
        *,
        partitions: int | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Send the records through an internal topic, so that equal keys come together.

        Args:
            partitions: partition count of the topic; None takes it from upstream.
            key: serde of the topic's keys; None takes that of the stream.
            value: serde of the topic's values; None takes that of the stream.
            name: what the topic is named after; None generates it.

        Raises:
            TopologyError: the name is not legal or is taken, or the count is not positive.
        """
        if partitions is not None and partitions < 1:
            raise TopologyError(f"repartition() was given {partitions} partitions; give at least 1")
        edge = self._with_serdes(key, value)
        # Unlike elsewhere, a given name uses up no number here.
        prefix = edge.draft.names.node("KSTREAM-REPARTITION-") if name is None else legal(name)
        return KStream(edge.repartitioned(prefix, partitions=partitions))

    def to(
        self,
        topic: str | Callable[[K, V], str],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: Function | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic, under their own timestamps and headers.

        Args:
            topic: the topic, or a function that is called as ``topic(key, value)`` and returns it.
            key: serde of keys; None takes that of the stream.
            value: serde of values; None takes that of the stream.
            partitioner: called as ``partitioner(topic, key, value, partitions)``; returns a
                partition, several in a list, an empty list to write nowhere, or None for that of
                the key.
            name: name of the node; None generates one.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        edge = self._with_serdes(key, value)
        node_name = edge.draft.names.node("KSTREAM-SINK-", name)
        target = topic if callable(topic) else legal(topic, "topic")
        edge.draft.add(
            Sink(node_name, (edge.node,), target, edge.key, edge.value, partitioner=partitioner)
        )

    def to_dead_letters(
        self, reason: str | Callable[[K, V], str], *, name: str | None = None
    ) -> None:
        """Write a dead letter for each record, with a reason; nothing can follow.

        It goes to the topic of the setting ``errors.dead.letter.queue.topic.name``, and is what a
        record that fails becomes there: the bytes of the input record, and headers with the reason
        as ``__streams.errors.message`` and with the place of the input record.

        Args:
            reason: the text, or a function that is called as ``reason(key, value)`` and returns it.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the reason is neither or is empty, or a name is not legal or is taken.
                Without the setting the application does not start.

        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serdes.string, value=serdes.json)
        >>> orders.filter(lambda _, order: order["price"] < 0).to_dead_letters(
        ...     reason=lambda key, order: f"order {key} has the price {order['price']}"
        ... )
        >>> settings = {"errors.dead.letter.queue.topic.name": "dead-letters"}
        >>> with TopologyTestDriver(builder.build(), settings) as driver:
        ...     driver.input("orders").send("o1", {"price": -5})
        ...     letter = driver.output("dead-letters", value=serdes.json).read()
        >>> letter.value, dict(letter.headers)["__streams.errors.message"]
        ({'price': -5}, b'order o1 has the price -5')
        """
        add_dead_letters(self._edge, reason, name)

    def to_sink(
        self,
        sink: ExternalSink,
        *,
        name: str,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        direct: bool = False,
    ) -> None:
        """Write each record to a table outside of Kafka, exactly once.

        The records go through a topic of their own, named after the step. A task of its own reads
        it, and its commit is the table's: rows and the position in the topic are one transaction.

        Args:
            sink: where to, such as a `SqliteSink`.
            name: of the step; positions are kept under the ``application.id`` and this name, so
                both stay as they are.
            key: serde of the topic's keys; None takes that of the stream.
            value: serde of the topic's values; None takes that of the stream.
            direct: whether there is no such topic: the task reads that of the stream itself, with
                steps in between that have no state. It is one topic alone, so no merged one, and
                nothing else may be made of it then.

        Raises:
            TopologyError: it is no sink, the name is not legal or is taken, or there are serdes for
                a topic that there is none of; `StreamsBuilder.build` says where it cannot be
                direct.

        Example:
            >>> from headrace import SqliteSink, StreamsBuilder, TopologyTestDriver
            >>> builder = StreamsBuilder()
            >>> orders = SqliteSink("shop.db", "orders", columns={"id": int, "price": float})
            >>> builder.stream("orders").to_sink(orders, name="store-orders")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("orders").send(None, {"id": 7, "price": 9.5})
            ...     [row.value for row in driver.sink("store-orders").rows]
            [{'id': 7, 'price': 9.5}]
        """
        if direct and (key is not None or value is not None):
            raise TopologyError(
                f"to_sink({name!r}, direct=True) has no topic of its own, whose serdes key= and "
                "value= are; leave them out, and give serdes to stream()"
            )
        add_external_sink(self._with_serdes(key, value), sink, name, direct=direct)

    def to_table(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, V]:
        """Read the stream as a table: the last value of each key, a null value deletes the row.

        Args:
            store: name or options of the store; a table that is given no name is not stored.
            key: serde of keys; None takes that of the stream.
            value: serde of values; None takes that of the stream.
            name: name of the node, and of the topic if the key has changed; None generates it.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        return ktable.KTable(to_table(self._with_serdes(key, value), materialized(store), name))

    def group_by_key(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> grouped.KGroupedStream[K, V]:
        """Group the records by the key that they have.

        Args:
            key: serde of keys; None takes that of the stream.
            value: serde of values; None takes that of the stream.
            name: what a repartition topic is named after; None takes the store's name.

        Raises:
            TopologyError: the name is not legal.
        """
        given = None if name is None else legal(name)
        return grouped.KGroupedStream(self._with_serdes(key, value), given)

    def group_by(
        self,
        selector: Callable[[K, V], K2],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> grouped.KGroupedStream[K2, V]:
        """Give each record another key and group the records by it.

        Args:
            selector: called as ``selector(key, value)``, returns the new key.
            key: serde of the new keys; None takes the setting ``default.key.serde``.
            value: serde of values; None takes that of the stream.
            name: name of the node, and of the repartition topic; None generates the one and takes
                the store's name for the other.

        Raises:
            TopologyError: the name is not legal or is taken.
        """
        rekeyed: KStream[K2, V] = self.select_key(selector, name=name)
        return grouped.KGroupedStream(rekeyed._with_serdes(key, value), name)

    def _added(
        self,
        op: StatelessOp,
        kind: str,
        function: Function | None,
        name: str | None,
        *,
        with_key: bool = True,
        label: str | None = None,
    ) -> Edge:
        node_name = self._edge.draft.names.node(f"KSTREAM-{kind}-", name)
        return self._edge.then(
            Stateless(node_name, (self._edge.node,), op, function, with_key, label)
        )

    def _with_serdes(self, key: Serde[Any] | None, value: Serde[Any] | None) -> Edge:
        edge = self._edge
        return replace(
            edge,
            key=edge.key if key is None else key,
            value=edge.value if value is None else value,
        )

    @overload
    def map_async(
        self,
        fn: Callable[..., Awaitable[V2]],
        *,
        with_key: bool = False,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...
    @overload
    def map_async(
        self, fn: Callable[..., V2], *, with_key: bool = False, **options: Unpack[CallOptions]
    ) -> KStream[K, V2]: ...

    def map_async(
        self,
        fn: Callable[..., Any],
        *,
        with_key: bool = False,
        concurrency: int = 100,
        timeout: timedelta = TIMEOUT,
        retry: Retry | None = None,
        order: Order = "kept",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Make another value of each by a call to the outside, many of them under way at a time.

        The calls belong to the transaction that their records are read in: their results go on in
        the order of the records, and none is under way at a commit. What is processed again after
        a failure is called for again.

        Args:
            fn: called as ``fn(value)``; a coroutine function, or a plain one, which is called in a
                thread. One with a parameter `call` is told which call it is, by a `Call` whose
                ``key`` is the same whenever the call is made again.
            with_key: call ``fn(key, value)`` instead.
            concurrency: how many calls of a task are under way at most.
            timeout: how long the calls for one record may take, with all attempts and pauses; to be
                shorter than ``producer.transaction.timeout.ms``.
            retry: how often a call that failed is made again, and when; None for never.
            order: "kept" for that of the records, "any" for that in which the calls end.
            on_error: what becomes of a record whose call failed in the end: "fail" asks the
                setting ``processing.exception.handler``, which by default stops the application,
                "skip" leaves it out, "dead_letter" writes it to the setting's dead-letter topic, a
                function is called as ``on_error(value, error)`` and returns the value.
            name: name of the node; None generates one.

        Raises:
            TopologyError: something cannot be called so, or is out of range; a name is not legal
                or is taken.

        >>> import asyncio
        >>> from headrace import TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> async def price_of(item):
        ...     await asyncio.sleep(0.02)  # ask a server
        ...     return len(item)
        >>> builder = StreamsBuilder()
        >>> items = builder.stream("items", key=serdes.string, value=serdes.string)
        >>> items.map_async(price_of, concurrency=50).to("prices", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("items").send_many([("a", "tea"), ("b", "cake")])
        ...     [(record.key, record.value) for record in driver.output("prices").read_all()]
        [('a', 3), ('b', 4)]
        """
        given = Calls(fn, with_key, concurrency, timeout, retry, order, on_error, name)
        return self._stream(called_for_each(self._edge, given))

    @overload
    def map_batches(
        self,
        fn: Callable[[list[V]], list[V2]],
        *,
        as_: Literal["list"] = "list",
        max_records: int = 1000,
        max_ms: int | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def map_batches(
        self,
        fn: Callable[[Any], Any],
        *,
        as_: Form,
        max_records: int = 1000,
        max_ms: int | None = None,
        name: str | None = None,
    ) -> KStream[K, Any]: ...

    def map_batches(
        self,
        fn: Callable[[Any], Any],
        *,
        as_: Form = "list",
        max_records: int = 1000,
        max_ms: int | None = None,
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Make other values of many records by one call: what models want.

        Args:
            fn: called as ``fn(values)``, returns as many values in their order: a list, or a frame
                or a column of such.
            as_: what it is given: a "list", or a table of "arrow", a frame of "pandas" or
                "polars", with a column for each name where values are dicts, and else a column
                ``value``.
            max_records: how many it is given at most.
            max_ms: for how many milliseconds values may wait for more of them, a commit aside; None
                for no longer than the records that were read together.
            name: name of the node; None generates one.

        Raises:
            TopologyError: a number is out of range, or a library is not installed; a name is not
                legal or is taken.

        >>> from headrace import TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> def score(values):
        ...     return [len(value) for value in values]  # ask a model
        >>> builder = StreamsBuilder()
        >>> items = builder.stream("items", key=serdes.string, value=serdes.string)
        >>> items.map_batches(score, max_records=256).to("scores", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("items").send_many([("a", "tea"), ("b", "cake")])
        ...     [(record.key, record.value) for record in driver.output("scores").read_all()]
        [('a', 3), ('b', 4)]
        """
        made = called_for_batches(
            self._edge, fn, max_records=max_records, max_ms=max_ms, form=as_, name=name
        )
        return self._stream(made)

    @overload
    def process(
        self,
        supplier: Callable[[], Processor[K, V, K2, V2]],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K2, V2]: ...
    @overload
    def process(
        self,
        supplier: Callable[[Record[K, V], ProcessorContext[K2, V2]], object],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K2, V2]: ...

    def process(
        self,
        supplier: Callable[..., Any],
        *,
        stores: Iterable[AnyStore] = (),
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Have a processor of one's own take each record; what it forwards is the result.

        It may change keys, so what needs equal keys together is repartitioned behind it.

        Args:
            supplier: makes a new processor in each call, one for each task; a class will do. Or a
                function that is called as ``function(record, context)``. One with an attribute
                `stores` brings those and is connected with them.
            stores: what the processor works with: names of stores, those of tables included, or
                what describes them, which are added.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the supplier makes no processors, or the same one twice; a name is not
                legal or is taken.

        >>> from headrace import Processor, Record, Stores, TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> class Numbered(Processor[str, str, str, str]):
        ...     stores = [Stores.key_value("lines-of", key=serdes.string, value=serdes.long)]
        ...     def init(self, context):
        ...         self.context = context
        ...         self.lines_of = context.store("lines-of")
        ...     def process(self, record):
        ...         number = (self.lines_of.get(record.key) or 0) + 1
        ...         self.lines_of.put(record.key, number)
        ...         self.context.forward(record.with_value(f"{number}: {record.value}"))
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines", key=serdes.string, value=serdes.string)
        >>> lines.process(Numbered, name="number").to("out", key=serdes.string, value=serdes.string)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("lines").send_many([("a", "to be"), ("b", "or"), ("a", "not")])
        ...     [(record.key, record.value) for record in driver.output("out").read_all()]
        [('a', '1: to be'), ('b', '1: or'), ('a', '2: not')]
        """
        return self._stream(process_step(self._edge, supplier, stores, name, fixed_key=False))

    @overload
    def process_values(
        self,
        supplier: Callable[[], FixedKeyProcessor[K, V, V2]],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K, V2]: ...
    @overload
    def process_values(
        self,
        supplier: Callable[[FixedKeyRecord[K, V], FixedKeyProcessorContext[K, V2]], object],
        **options: Unpack[ProcessorOptions],
    ) -> KStream[K, V2]: ...

    def process_values(
        self,
        supplier: Callable[..., Any],
        *,
        stores: Iterable[AnyStore] = (),
        name: str | None = None,
    ) -> KStream[K, Any]:
        """Have a processor of one's own take each record, which leaves keys as they are.

        So nothing is repartitioned behind it. See `process` for the rest.

        Args:
            supplier: makes a new `FixedKeyProcessor` in each call, or is a function that is called
                as ``function(record, context)``; records are `FixedKeyRecord`.
            stores: what the processor works with.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the supplier makes no processors, or the same one twice; a name is not
                legal or is taken.

        >>> from headrace import TopologyTestDriver, serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> def where(record, context):
        ...     context.forward(record.with_value(context.record_metadata.offset))
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines", key=serdes.string, value=serdes.string)
        >>> lines.process_values(where).to("out", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("lines").send_many([("a", "to be"), ("b", "or")])
        ...     [(record.key, record.value) for record in driver.output("out").read_all()]
        [('a', 0), ('b', 1)]
        """
        return self._stream(process_step(self._edge, supplier, stores, name, fixed_key=True))

    @overload
    def deduplicate(
        self,
        *,
        within: timedelta,
        key: Callable[[V], object] | None = ...,
        with_key: Literal[False] = ...,
        grace: timedelta = ...,
        id_serde: Serde[Any] | None = ...,
        key_serde: Serde[K] | None = ...,
        value_serde: Serde[V] | None = ...,
        store: str | Materialized | None = ...,
        name: str | None = ...,
    ) -> KStream[K, V]: ...
    @overload
    def deduplicate(
        self,
        *,
        within: timedelta,
        key: Callable[[K, V], object],
        with_key: Literal[True],
        grace: timedelta = ...,
        id_serde: Serde[Any] | None = ...,
        key_serde: Serde[K] | None = ...,
        value_serde: Serde[V] | None = ...,
        store: str | Materialized | None = ...,
        name: str | None = ...,
    ) -> KStream[K, V]: ...

    def deduplicate(
        self,
        *,
        within: timedelta,
        key: Callable[..., object] | None = None,
        with_key: bool = False,
        grace: timedelta = NO_GRACE,
        id_serde: Serde[Any] | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Let a record go on unless one with its id went on at most `within` before or after it.

        The id is the record's key, or the key and what `key` returns. Times are those of records.
        One that is left out starts no interval of its own. Records without a key, and those for
        which `key` returns None, always go on (Kafka Streams: KIP-655). Ids are equal where their
        serdes make the same bytes of them: with `serdes.json` 1, 1.0 and True are three.

        Args:
            within: how far from a record that went on others are left out, both ends included.
            key: called as ``key(value)``, returns what tells records of one key apart.
            with_key: call ``key(key, value)`` instead.
            grace: how far behind stream time a record may come and be judged by all that went on;
                what comes later goes on unless one that is still known lies near.
            id_serde: serde of what `key` returns; None takes ``default.key.serde``.
            key_serde: serde of keys; None takes that of the stream.
            value_serde: serde of values in a repartition topic; None takes that of the stream.
            store: name or options of the store, which is never cached; None generates the name.
            name: name of the node, and of the topic if the key has changed; None generates the one
                and takes the store's name for the other.

        Raises:
            TopologyError: a duration is not possible, or a name is not legal or is taken.

        >>> from datetime import timedelta
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> paid = builder.stream("paid", key=serdes.string, value=serdes.json)
        >>> once = paid.deduplicate(
        ...     within=timedelta(hours=1), key=lambda bill: bill["id"], store="paid-once"
        ... )
        >>> once.to("once")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     sent = [(0, 7), (60_000, 7), (60_000, 8), (3_600_001, 7)]
        ...     for timestamp, number in sent:
        ...         driver.input("paid").send("ann", {"id": number}, timestamp=timestamp)
        ...     [(r.value["id"], r.timestamp) for r in driver.output("once").read_all()]
        [(7, 0), (8, 60000), (7, 3600001)]
        """
        if key is None and (with_key or id_serde is not None):
            raise TopologyError(
                "deduplicate() was given with_key= or id_serde=, which are for what key= returns; "
                "give it key=, or leave them out"
            )
        given = Deduplication(within, grace, key, with_key, id_serde, materialized(store), name)
        edge = self._edge
        edge = replace(edge, key=key_serde or edge.key, value=value_serde or edge.value)
        return self._stream(deduplicated(edge, given))

    def sample(
        self,
        fraction: float,
        *,
        by: By = "key",
        serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Let a share of the records go on, by a hash of what they are and never by chance.

        All records of a key go on, or none, in each run and in a backfill as well. The hash is
        BLAKE2b of the bytes that the serde makes (see `headrace.topology.operators.sample`), which
        has nothing to do with the one that partitions go by.

        Args:
            fraction: the share, from 0 to 1; about that part of the keys goes on.
            by: "key", or "value" to decide for each value by itself.
            serde: whose bytes are hashed; None takes that of the stream's keys or values.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the fraction is not from 0 to 1, or a name is not legal or is taken.

        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key=serdes.string, value=serdes.long)
        >>> clicks.sample(0.5).to("some")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("clicks").send_many([("a", 1), ("b", 1), ("c", 1), ("a", 2)])
        ...     [(record.key, record.value) for record in driver.output("some").read_all()]
        [('a', 1), ('b', 1), ('a', 2)]
        """
        return self._stream(sampled(self._edge, fraction, by, serde, name))

    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[StreamJoinOptions[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[StreamJoinOptions[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[V, V2], R],
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[TableJoinOptions[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        with_key: Literal[True],
        **options: Unpack[TableJoinOptions[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    def join(
        self,
        other: KStream[K, V2] | ktable.KTable[K, V2] | GlobalKTable[Any, V2],
        joiner: Callable[..., R],
        windows: JoinWindows | None = None,
        *,
        with_key: bool = False,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        grace: timedelta | None = None,
        key_mapper: Callable[[K, V], Any] | None = None,
        late: Late[K, V] | None = None,
        other_late: Late[K, V2] | None = None,
    ) -> KStream[K, R]:
        """Join each record with those of another stream near it in time, or with a row of a table.

        With another stream, both keep their records, and each record is joined with all of the
        other stream that have its key and lie within `windows`, whichever comes first. The result
        has the later timestamp of the two. With a table, each record of this stream is joined with
        the row that the table has at that moment, and the result has the record's timestamp. A
        `GlobalKTable` is looked up likewise, by the key that `key_mapper` tells.

        A record without a value, or a match, has no result; one without a key is left to
        ``null.key.policy``. A side whose key may have changed is partitioned anew, and both sides
        have as many partitions: with a global table neither matters.

        Args:
            other: the other stream, or the table, global or not.
            joiner: called as ``joiner(value, other_value)``.
            windows: how far apart in time records of two streams may lie.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None takes that of this stream, or else that of the other.
            value: serde of this stream's values; None takes what it has.
            other_value: serde of the other stream's values; None takes what it has.
            store: what the names of two streams' stores begin with, or their options. A retention
                longer than the windows and their grace lets records be joined that come even later.
            name: what names of nodes and repartition topics begin with, or the node's name where
                the other side is a table; None generates them.
            grace: how long a record waits for late rows of a table that keeps its past
                (``store=Materialized(history=...)``), to be joined with the row of its time.
            key_mapper: called as ``key_mapper(key, value)``, tells the key of a global table's row.
            late: is given this stream's records that came too late to be kept, once they are
                joined with what the other stream still had; nothing that comes will find them.
            other_late: the same with the other stream's records, in the serdes of that one.

        Raises:
            TopologyError: a name is not legal or is taken, or an argument does not go with `other`.

        >>> from datetime import timedelta
        >>> from headrace import JoinWindows, StreamsBuilder, TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> views, clicks = builder.stream("views"), builder.stream("clicks")
        >>> minute = JoinWindows(time_difference=timedelta(minutes=1))
        >>> views.join(clicks, "{}, {}".format, minute, store="pairs", name="pair").to("pairs")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("views").send("ann", "page", timestamp=0)
        ...     driver.input("clicks").send("ann", "button", timestamp=50_000)
        ...     driver.input("clicks").send("ann", "link", timestamp=70_000)
        ...     [(r.key, r.value, r.timestamp) for r in driver.output("pairs").read_all()]
        [('ann', 'page, button', 50000)]
        """
        return self._joined(
            "inner", other, joiner, windows, with_key=with_key, key=key, value=value,
            other_value=other_value, store=store, name=name, late_match="emit", late=late,
            other_late=other_late, key_mapper=key_mapper, grace=grace,
        )  # fmt: skip

    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[OuterJoinOptions[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[OuterJoinOptions[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[TableJoinOptions[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        with_key: Literal[True],
        **options: Unpack[TableJoinOptions[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    def left_join(
        self,
        other: KStream[K, V2] | ktable.KTable[K, V2] | GlobalKTable[Any, V2],
        joiner: Callable[..., R],
        windows: JoinWindows | None = None,
        *,
        with_key: bool = False,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        late_match: LateMatch = "emit",
        grace: timedelta | None = None,
        key_mapper: Callable[[K, V], Any] | None = None,
        late: Late[K, V] | None = None,
        other_late: Late[K, V2] | None = None,
    ) -> KStream[K, R]:
        """As `join`, and a record of this stream that matches nothing is joined with None.

        With another stream that happens as soon as stream time is later than the last time at which
        something could match the record: its own time, the windows' reach and the grace period. A
        result follows all the same if a match comes even later and the record is still kept, unless
        `late_match` is "drop". With a table it happens at once.

        A record without a key is joined with None at once; one without a value has no result. With
        a global table the first goes for a record for which `key_mapper` tells None.

        Args:
            other: the other stream, or the table, global or not.
            joiner: called as ``joiner(value, other_value)``, with None where there is none.
            windows: how far apart in time records of two streams may lie.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None takes that of this stream, or else that of the other.
            value: serde of this stream's values; None takes what it has.
            other_value: serde of the other stream's values; None takes what it has.
            store: how the records of two streams are kept, as `join` takes it.
            name: what names begin with, as `join` takes it.
            grace: how long a record waits for late rows of a table, as `join` takes it.
            late_match: what a match makes that comes after the null result: "emit" makes a second
                result, as in Kafka Streams; with "drop" the null result is the last one.
            key_mapper: tells the key to look up in a global table, as `join` takes it.
            late: is given this stream's records that came too late to be kept.
            other_late: the same with the other stream's records.

        Raises:
            TopologyError: as `join`.

        >>> from headrace import StreamsBuilder, TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> users, views = builder.table("users", store="users"), builder.stream("views")
        >>> views.left_join(users, "{} by {}".format, name="name").to("seen")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("views").send("u1", "page")
        ...     driver.input("users").send("u1", "Ann")
        ...     driver.input("views").send("u1", "shop")
        ...     [r.value for r in driver.output("seen").read_all()]
        ['page by None', 'shop by Ann']
        """
        return self._joined(
            "left", other, joiner, windows, with_key=with_key, key=key, value=value,
            other_value=other_value, store=store, name=name, late_match=late_match, late=late,
            other_late=other_late, key_mapper=key_mapper, grace=grace,
        )  # fmt: skip

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[OuterJoinOptions[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[OuterJoinOptions[K, V, V2]],
    ) -> KStream[K, R]: ...

    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[..., R],
        windows: JoinWindows,
        *,
        with_key: bool = False,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        late_match: LateMatch = "emit",
        late: Late[K, V] | None = None,
        other_late: Late[K, V2] | None = None,
    ) -> KStream[K, R]:
        """As `left_join`, and so are the other stream's records that match nothing.

        Args:
            other: the other stream.
            joiner: called as ``joiner(value, other_value)``; one of them may be None.
            windows: how far apart in time records may lie.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None takes that of this stream, or else that of the other.
            value: serde of this stream's values; None takes what it has.
            other_value: serde of the other stream's values; None takes what it has.
            store: how the records are kept, as `join` takes it.
            name: what names begin with, as `join` takes it.
            late_match: what a match makes that comes after a null result, as `left_join` takes it.
            late: is given the records of this stream that came too late to be kept.
            other_late: the same with the other stream's records.

        Returns:
            The stream of results.

        Raises:
            TopologyError: as `join`.

        >>> from datetime import timedelta
        >>> from headrace import JoinWindows, StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> texts = {"key": serdes.string, "value": serdes.string}
        >>> sent, paid = builder.stream("sent", **texts), builder.stream("paid", **texts)
        >>> day = JoinWindows(time_difference=timedelta(days=1))
        >>> pairs = sent.outer_join(paid, lambda a, b: (a, b), day, store="bills", name="bill")
        >>> pairs.to("bills", value=serdes.json)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("sent").send("b1", "sent", timestamp=0)
        ...     driver.input("paid").send("b2", "paid", timestamp=0)
        ...     driver.input("sent").send("b3", "sent", timestamp=86_400_001)
        ...     [(r.key, r.value) for r in driver.output("bills").read_all()]
        [('b2', [None, 'paid']), ('b1', ['sent', None])]
        """
        return self._joined(
            "outer", other, joiner, windows, with_key=with_key, key=key, value=value,
            other_value=other_value, store=store, name=name, late_match=late_match, late=late,
            other_late=other_late,
        )  # fmt: skip

    def _joined(
        self,
        kind: JoinKind,
        other: Any,
        joiner: Callable[..., Any],
        windows: JoinWindows | None,
        **options: Any,
    ) -> KStream[Any, Any]:
        key_mapper, grace = options.pop("key_mapper", None), options.pop("grace", None)
        if grace is not None and not isinstance(other, ktable.KTable):
            raise TopologyError(
                "grace= is for joins with a table that keeps its past; two streams have the grace "
                "period of their JoinWindows, and a global table has only present rows"
            )
        if isinstance(other, GlobalKTable):
            options["windows"] = windows
            return self._stream(global_join(self._edge, other, joiner, key_mapper, kind, options))
        if key_mapper is not None:
            raise TopologyError(
                "key_mapper= is for joins with a global table; a stream or a table is joined by "
                "the key that the records have: select_key() gives them another"
            )
        if isinstance(other, ktable.KTable):
            lookup = replace(table_lookup(kind, joiner, windows, options), grace=grace)
            return self._stream(add_table_join(self._edge, other._edge, lookup))
        if not isinstance(other, KStream):
            raise TypeError(
                "a stream joins with a KStream, a KTable or a GlobalKTable, not with a "
                f"{type(other).__name__}"
            )
        if not isinstance(windows, JoinWindows):
            raise TopologyError(
                "a join of two streams takes JoinWindows: how far apart in time records of both "
                f"may lie; it was given {windows!r}"
            )
        kept = materialized(options.pop("store"))
        join = StreamJoin(kind=kind, joiner=joiner, windows=windows, store=kept, **options)
        return self._stream(add_stream_join(self._edge, other._edge, join))

    def _stream(self, edge: Edge) -> KStream[Any, Any]:
        return KStream(edge)
