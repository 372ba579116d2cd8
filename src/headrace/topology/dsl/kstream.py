"""Stream of records and its operators."""

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
from headrace.topology.dsl.steps.calls import (
    CallOptions,
    MapAsyncArguments,
    OnError,
    add_map_async,
    add_map_batches,
)
from headrace.topology.dsl.steps.join_nodes import (
    JoinKind,
    OuterJoinOptions,
    StreamJoin,
    StreamJoinOptions,
    TableJoinOptions,
    add_stream_join,
    add_table_join,
    global_join,
    table_lookup,
)
from headrace.topology.dsl.steps.stream_steps import (
    AnyStore,
    By,
    Deduplication,
    Late,
    ProcessorOptions,
    add_dead_letters,
    add_external_sink,
    deduplicated,
    merged,
    process_step,
    sampled,
)
from headrace.topology.dsl.steps.table_steps import to_table
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Function, Sink, Stateless, StatelessOp
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.naming import require_legal_name
from headrace.topology.operators.frames import Form
from headrace.topology.operators.joins.stream_join import LateMatch
from headrace.topology.operators.map_async import Order
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
"""Any, if the types that a lambda forwards are unknown."""


TIMEOUT = timedelta(seconds=5)
"""Default timeout of external calls, shorter than the default transaction timeout."""


@checked
class KStream(Generic[K, V]):
    """Stream of records; each method adds an operator downstream of this stream.

    Functions take ``(key, value)``; functions of the ``*_values`` operators take only the value,
    unless ``with_key`` is set. They must not change their arguments. A stream may have several
    downstream operators: each of them receives every record.

    Arguments that a method does not describe: `name` is the name of the node; None generates one.
    `key` and `value` are the serdes of keys and values; None uses the stream's. All methods raise
    `TopologyError` if a name is not legal or is taken.

    Examples:
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

        Most stateless operators:

        >>> builder = StreamsBuilder()
        >>> texts = {"key": serdes.string, "value": serdes.string}
        >>> lines = builder.stream("notes", **texts).merge(builder.stream("mails", **texts))
        >>> lines.peek(lambda key, line: print("read", line)).for_each(lambda key, line: None)
        >>> full = lines.filter_not(lambda key, line: not line).map_values(str.strip)
        >>> words = full.flat_map(lambda key, line: [(word, key) for word in line.split()])
        >>> swapped = words.map(lambda word, user: (user, word))
        >>> by_user = swapped.repartition(**texts, name="by-user")
        >>> by_user.select_key(lambda user, word: word[0]).print(label="letters")
        >>> by_user.to_table(store="last-word").to_stream().to("last-words", **texts)
        >>> with TopologyTestDriver(builder.build(), partitions=1) as driver:
        ...     driver.input("notes").send("ann", " to be")
        ...     driver.output("last-words").as_dict()
        read  to be
        [letters]: t, to
        [letters]: b, be
        {'ann': 'be'}
    """

    __slots__ = ("_edge",)

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def __repr__(self) -> str:
        return f"<KStream of {self._edge}>"

    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KStream[K, V]:
        """Keep the records for which the predicate is true.

        Args:
            predicate: called as ``predicate(key, value)``.
        """
        return KStream(self._added("filter", "FILTER", predicate, name))

    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KStream[K, V]:
        """Keep the records for which the predicate is false.

        Args:
            predicate: called as ``predicate(key, value)``.
        """
        return KStream(self._added("filter_not", "FILTER", predicate, name))

    def map(
        self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Replace each record by another record.

        Args:
            mapper: called as ``mapper(key, value)``, returns the new key and value.
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
        """Replace the value of each record; the key stays, so no repartition is needed.

        Args:
            mapper: called as ``mapper(value)``.
            with_key: call ``mapper(key, value)`` instead.
        """
        edge = self._added("map_values", "MAPVALUES", mapper, name, with_key=with_key)
        return KStream(replace(edge, value=None))

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Replace each record by any number of records.

        Args:
            mapper: called as ``mapper(key, value)``, returns pairs of a key and a value.
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
        """Replace the value of each record by any number of values with the same key.

        Args:
            mapper: called as ``mapper(value)``, returns values.
            with_key: call ``mapper(key, value)`` instead.
        """
        edge = self._added("flat_map_values", "FLATMAPVALUES", mapper, name, with_key=with_key)
        return KStream(replace(edge, value=None))

    def select_key(
        self, mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> KStream[K2, V]:
        """Replace the key of each record.

        Args:
            mapper: called as ``mapper(key, value)``, returns the new key.
        """
        edge = self._added("select_key", "KEY-SELECT", mapper, name)
        return KStream(replace(edge, key=None, rekeyed=True))

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Call a function with each record and forward the record unchanged.

        Args:
            action: called as ``action(key, value)``; called again where a record is processed again
                after a failure.
        """
        return KStream(self._added("peek", "PEEK", action, name))

    def for_each(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Call a function with each record; the result has no downstream operators.

        Args:
            action: called as ``action(key, value)``; called again where a record is processed again
                after a failure.
        """
        self._added("for_each", "FOREACH", action, name)

    def print(self, *, label: str | None = None, name: str | None = None) -> None:
        """Write each record to the standard output, as ``[label]: key, value``.

        Args:
            label: text in the brackets; None uses the name of the upstream node.
        """
        self._added(
            "print", "PRINTER", None, name, label=self._edge.node if label is None else label
        )

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Merge two streams into a single stream; their relative order is undefined.

        Args:
            other: a stream of the same builder.

        Raises:
            TopologyError: the other stream comes from another builder.
        """
        return KStream(merged(self._edge, other._edge, name))

    def split(self, *, name: str | None = None) -> branched.BranchedKStream[K, V]:
        """Start a split of the stream into branches.

        Args:
            name: prefix of the branches' names; None generates it.
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
        """Send the records through an internal topic that is partitioned by key.

        Args:
            partitions: partition count of the topic; None uses the upstream partition count.
            name: prefix of the topic's name; None generates it.

        Raises:
            TopologyError: the count is not positive.
        """
        if partitions is not None and partitions < 1:
            raise TopologyError(f"repartition() was given {partitions} partitions; give at least 1")
        edge = self._with_serdes(key, value)
        # Unlike in other methods, a given name does not use up a number here.
        prefix = (
            edge.draft.names.node("KSTREAM-REPARTITION-")
            if name is None
            else require_legal_name(name)
        )
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
        """Write the records to a topic, with their timestamps and headers.

        Args:
            topic: the topic, or a function that is called as ``topic(key, value)`` and returns it.
            partitioner: called as ``partitioner(topic, key, value, partitions)``; returns a
                partition, several in a list, an empty list to write nowhere, or None for the key's
                default partition.
        """
        edge = self._with_serdes(key, value)
        node_name = edge.draft.names.node("KSTREAM-SINK-", name)
        target = topic if callable(topic) else require_legal_name(topic, "topic")
        edge.draft.add(
            Sink(node_name, (edge.node,), target, edge.key, edge.value, partitioner=partitioner)
        )

    def to_dead_letters(
        self, reason: str | Callable[[K, V], str], *, name: str | None = None
    ) -> None:
        """Write a dead letter with a reason for each record; the result has no downstream
        operators.

        The dead letter goes to the topic of the setting ``errors.dead.letter.queue.topic.name``,
        and has the same format as a failed record's: the bytes of the input record, and headers
        with the reason as ``__streams.errors.message`` and with topic, partition and offset of the
        input record.

        Args:
            reason: the text, or a function that is called as ``reason(key, value)`` and returns it.

        Raises:
            TopologyError: the reason is empty or has another type. Without the setting the
                application does not start.

        Examples:
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
        """Write each record to an external sink, exactly once.

        The records go through an internal topic, named after the node. A separate task reads it and
        commits in the external sink: rows and the position in the topic are in one transaction.

        Args:
            sink: the sink, such as a `SqliteSink`.
            name: name of the node; positions are stored under the ``application.id`` and this name,
                so neither may change.
            direct: whether to omit the internal topic: the task reads the stream's input topic
                itself, with only stateless nodes in between. This requires a stream of a single
                topic that has no other downstream nodes.

        Raises:
            TopologyError: it is not a sink, or serdes are given without an internal topic;
                `StreamsBuilder.build` checks the other requirements of `direct`.

        Examples:
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
                f"to_sink({name!r}, direct=True) writes no internal topic, so key= and value= "
                "have no effect; omit them, and give serdes to stream()"
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
        """Read the stream as a table: the last value of each key; a null value deletes the row.

        Args:
            store: name or options of the store; a table without a name is not stored.
            name: name of the node, and of the topic if the key has changed; None generates it.
        """
        return ktable.KTable(to_table(self._with_serdes(key, value), materialized(store), name))

    def group_by_key(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> grouped.KGroupedStream[K, V]:
        """Group the records by their key.

        Args:
            name: prefix of the repartition topic's name; None uses the store's name.
        """
        given = None if name is None else require_legal_name(name)
        return grouped.KGroupedStream(self._with_serdes(key, value), given)

    def group_by(
        self,
        selector: Callable[[K, V], K2],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> grouped.KGroupedStream[K2, V]:
        """Replace the key of each record and group the records by the new key.

        Args:
            selector: called as ``selector(key, value)``, returns the new key.
            key: serde of the new keys; None uses the setting ``default.key.serde``.
            value: serde of the values in the repartition topic; None uses the stream's.
            name: name of the node, and prefix of the repartition topic's name; None generates the
                node's name and uses the store's name for the topic.
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
        """Call an external service for each record, with many calls in flight, and use the result
        as the value.

        The calls belong to the transaction of their records: by default results are forwarded in
        the order of the records, and no call is in flight at a commit. Calls are repeated if their
        records are processed again after a failure.

        Args:
            fn: called as ``fn(value)``; a coroutine function, or a plain function, which is called
                in a thread. A function with a parameter `call` receives a `Call` whose ``key`` is
                the same whenever the call is repeated.
            with_key: call ``fn(key, value)`` instead.
            concurrency: maximum number of calls in flight per task.
            timeout: time limit of the calls for a record, including all attempts and pauses; must
                be shorter than ``producer.transaction.timeout.ms``.
            retry: retry policy of failed calls; None for no retries.
            order: "kept" for the order of the records, "any" for the order in which the calls end.
            on_error: reaction to a record whose last attempt failed: "fail" asks the setting
                ``processing.exception.handler``, which by default stops the application, "skip"
                drops the record, "dead_letter" writes it to the setting's dead-letter topic, a
                function is called as ``on_error(value, error)`` and returns the value.

        Raises:
            TopologyError: the function cannot be called this way, or an argument is out of range.

        Examples:
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
        given = MapAsyncArguments(fn, with_key, concurrency, timeout, retry, order, on_error, name)
        return self._stream(add_map_async(self._edge, given))

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
        """Call a function, such as a model, with batches of values, and use its results as the new
        values.

        Args:
            fn: called as ``fn(values)``, returns as many values in their order: a list, or a frame
                or a column of them.
            as_: type of the argument: a "list", or a table of "arrow", a frame of "pandas" or
                "polars", with a column for each name if values are dicts, and otherwise a column
                ``value``.
            max_records: maximum number of values per call.
            max_ms: maximum wait for more values in milliseconds; a commit ends the wait earlier.
                None calls the function for the records of each poll.

        Raises:
            TopologyError: a number is out of range, or a library is not installed.

        Examples:
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
        made = add_map_batches(
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
        """Process each record with a user-defined processor; the records that it forwards are the
        result.

        It may change keys, so downstream operators that require partitioning by key repartition the
        result.

        Args:
            supplier: returns a new processor in each call, for each task; may be a class. Or a
                function that is called as ``function(record, context)``. A supplier with an
                attribute `stores` adds these stores and connects the processor to them.
            stores: stores of the processor: names of stores or tables, or store builders, whose
                stores are added.

        Raises:
            TopologyError: the supplier does not return processors, or returns the same processor
                twice.

        Examples:
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
            >>> numbered = lines.process(Numbered, name="number")
            >>> numbered.to("out", key=serdes.string, value=serdes.string)
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
        """Process each record with a user-defined processor that cannot change keys.

        So no repartition is needed downstream. See `process` for details.

        Args:
            supplier: returns a new `FixedKeyProcessor` in each call, or is a function that is
                called as ``function(record, context)``; records are `FixedKeyRecord`.
            stores: see `process`.

        Examples:
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
        """Drop a record if a record with the same id, at most `within` before or after it, was
        forwarded.

        The id is the record's key, or the key and the result of `key`. Times are the records'
        timestamps. A dropped record does not start a new interval. Records without a key, and
        records for which `key` returns None, are always forwarded (Kafka Streams: KIP-655). Ids are
        equal if their serialized bytes are equal: with `serdes.json` 1, 1.0 and True are three ids.

        Args:
            within: maximum distance in time of a duplicate from a forwarded record, both ends
                included.
            key: called as ``key(value)``, returns the part of the id that distinguishes records of
                a key.
            with_key: call ``key(key, value)`` instead.
            grace: how late a record may be and still be compared with all forwarded records; a
                later record is forwarded unless a forwarded record that is still stored is near.
            id_serde: serde of the results of `key`; None uses ``default.key.serde``.
            key_serde: serde of keys; None uses the stream's.
            value_serde: serde of values in a repartition topic; None uses the stream's.
            store: name or options of the store, which is never cached; None generates the name.
            name: name of the node, and of the topic if the key has changed; None generates the
                node's name and uses the store's name for the topic.

        Raises:
            TopologyError: a duration is not possible.

        Examples:
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
                "deduplicate() was given with_key= or id_serde=, which require key=; give it key=, "
                "or leave them out"
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
        """Forward a fraction of the records, chosen by a hash of their key or value.

        The choice is deterministic: all records of a key are forwarded or none, in each run and in
        a backfill. The hash is BLAKE2b of the serialized bytes (see
        `headrace.topology.operators.sample`) and independent of the partitioner's hash.

        Args:
            fraction: the fraction of the keys, from 0 to 1; the actual fraction is approximate.
            by: "key", or "value" to choose by the value instead.
            serde: serde of the hashed bytes; None uses the stream's key or value serde.

        Raises:
            TopologyError: the fraction is not from 0 to 1.

        Examples:
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
        """Join each record with another stream's records near it in time, or with a row of a table.

        With a stream, each record is joined with all records of the other stream that have its key
        and are within `windows`; the result has the later timestamp. With a table, it is joined
        with the current row of its key (global: of `key_mapper`), and the result has its timestamp.
        A record without a value or a match has no result, one without a key is handled by
        ``null.key.policy``. Sides whose keys may have changed are repartitioned, and both sides
        need the same number of partitions; neither is necessary for a global table.

        Args:
            other: the other stream, or the table, global or not.
            joiner: called as ``joiner(value, other_value)``.
            windows: maximum distance in time between records of two streams.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None uses this stream's, or else the other's.
            value: serde of this stream's values, in the store and the repartition topic; None uses
                the stream's, or ``default.value.serde`` if an operator has changed the values.
            other_value: serde of the other stream's values; None uses the stream's.
            store: prefix of the names of two streams' stores, or their options. With a retention
                longer than the windows and their grace, even later records are joined.
            name: prefix of the names of nodes and repartition topics, or the node's name if the
                other side is a table; None generates them.
            grace: how long a record waits for late rows of a versioned table
                (``store=Materialized(history=...)``), to be joined with the row of its time.
            key_mapper: called as ``key_mapper(key, value)``, returns the key of a global table's
                row.
            late: called with the stream of this stream's late records: they are joined with the
                other stream's stored records, but are not stored themselves.
            other_late: the same for the other stream's late records, with that stream's serdes.

        Raises:
            TopologyError: an argument is not valid for `other`.

        Examples:
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
        """Join like `join`; a record of this stream without a match is joined with None.

        With another stream, the unmatched result is forwarded when stream time is later than the
        last time at which a match could come: the record's time, the windows' reach and the grace
        period. A match that comes even later still has a result if the record is still stored,
        unless `late_match` is "drop". With a table, the unmatched result is forwarded immediately.

        A record without a key is joined with None immediately; a record without a value has no
        result. With a global table the former applies to a record for which `key_mapper` returns
        None.

        Args:
            joiner: called as ``joiner(value, other_value)``, with None if there is no match.
            with_key: call ``joiner(key, value, other_value)`` instead.
            late_match: reaction to a match that comes after the unmatched result: "emit" forwards a
                second result, as in Kafka Streams; with "drop" the unmatched result is the last
                result.

        All other arguments are as in `join`.

        Examples:
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
        """Join like `left_join`; the other stream's records without a match are joined with None,
        too.

        Args:
            joiner: called as ``joiner(value, other_value)``; one of them may be None.
            with_key: call ``joiner(key, value, other_value)`` instead.

        All other arguments are as in `left_join`.

        Examples:
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
                "grace= is for joins with a versioned table; a join of two streams uses the grace "
                "period of JoinWindows, and a global table has only current rows"
            )
        if isinstance(other, GlobalKTable):
            options["windows"] = windows
            return self._stream(global_join(self._edge, other, joiner, key_mapper, kind, options))
        if key_mapper is not None:
            raise TopologyError(
                "key_mapper= is for joins with a global table; a join with a stream or a table "
                "uses the key of the records; change it with select_key()"
            )
        if isinstance(other, ktable.KTable):
            lookup = replace(table_lookup(kind, joiner, windows, options), grace=grace)
            return self._stream(add_table_join(self._edge, other._edge, lookup))
        if not isinstance(other, KStream):
            raise TypeError(
                "a stream can be joined with a KStream, a KTable or a GlobalKTable, not with a "
                f"{type(other).__name__}"
            )
        if not isinstance(windows, JoinWindows):
            raise TopologyError(
                "a join of two streams requires JoinWindows, the maximum time between two "
                f"matching records, not {windows!r}"
            )
        store_options = materialized(options.pop("store"))
        join = StreamJoin(kind=kind, joiner=joiner, windows=windows, store=store_options, **options)
        return self._stream(add_stream_join(self._edge, other._edge, join))

    def _stream(self, edge: Edge) -> KStream[Any, Any]:
        return KStream(edge)
