"""Table: the last value of each key, and the stream of its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from headrace.topology.arguments import checked
from headrace.topology.dsl import grouped_table, kstream
from headrace.topology.dsl.steps.foreign_key_join import Partitioner, foreign_key_join
from headrace.topology.dsl.steps.join_nodes import primary_key_join
from headrace.topology.dsl.steps.stream_steps import AnyStore, add_external_sink
from headrace.topology.dsl.steps.table_steps import (
    FILTER,
    MAP_VALUES,
    filtered,
    filtered_not,
    mapped_table,
    mapped_values,
    transformed_table,
)
from headrace.topology.dsl.suppressed import Suppressed, close_wait_ms
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import (
    AnySerde,
    Function,
    OperatorNode,
    Stateless,
    by_name,
    is_versioned,
)
from headrace.topology.graph.materialized import Materialized, TableOptions
from headrace.topology.naming import require_legal_name
from headrace.topology.operators.table_group import SelectGroup
from headrace.topology.operators.transform_values import ValueTransformerWithKey
from headrace.topology.operators.windows.buffered import BufferedSerde
from headrace.topology.operators.windows.suppress import Suppress
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde

# Joins of a table with another table: by key, or by a foreign key.


K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
VO = TypeVar("VO")
R = TypeVar("R")


class ForeignKeyJoinOptions(TableOptions[K, R], total=False):
    """Options of a foreign-key join; see `KTable.join`."""

    partitioner: Partitioner | None
    other_partitioner: Partitioner | None


V2 = TypeVar("V2")


@checked
class KTable(Generic[K, V]):
    """Rows by key; downstream nodes receive each change, with None for a deleted row.

    Arguments that a method does not describe: `store` is the name or the options of a store for the
    resulting rows; None computes them from this table's rows when they are read. `key` and `value`
    are the serdes of the rows' keys and values; None uses this table's. `name` is the name of the
    node; None generates one. All methods raise `TopologyError` if a name is not legal or is taken.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
        >>> prices
        <KTable of KTABLE-SOURCE-0000000002 key=string value=long>
        >>> prices.map_values(lambda price: 2 * price).to_stream().to("doubled")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("prices").send_many([("tea", 3), ("cup", 5), ("tea", None)])
        ...     [(record.key, record.value) for record in driver.output("doubled").read_all()]
        [('tea', 6), ('cup', 10), ('tea', None)]
    """

    __slots__ = ("_edge",)

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def __repr__(self) -> str:
        return f"<KTable of {self._edge}>"

    def filter(
        self,
        predicate: Callable[[K, V], object],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Keep the rows for which the predicate is true; other rows count as deleted.

        Args:
            predicate: called as ``predicate(key, value)``, never with None as the value.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
            >>> dear = prices.filter(lambda item, price: price > 9, store="dear")
            >>> dear.to_stream().print(label="dear")
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("prices").send_many([("tea", 12), ("tea", 3), ("jam", 4)])
            [dear]: tea, 12
            [dear]: tea, None
        """
        return self._mapped(FILTER, filtered(predicate), store, key, value, name)

    def filter_not(
        self,
        predicate: Callable[[K, V], object],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Keep the rows for which the predicate is false; other rows count as deleted.

        Args:
            predicate: called as ``predicate(key, value)``, never with None as the value.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
            >>> cheap = prices.filter_not(lambda item, price: price > 9, store="cheap")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("prices").send_many([("tea", 12), ("jam", 4)])
            ...     dict(driver.store("cheap"))
            {'jam': 4}
        """
        return self._mapped(FILTER, filtered_not(predicate), store, key, value, name)

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2 | None],
        *,
        with_key: Literal[False] = False,
        **options: Unpack[TableOptions[K, V2]],
    ) -> KTable[K, V2]: ...
    @overload
    def map_values(
        self,
        mapper: Callable[[K, V], V2 | None],
        *,
        with_key: Literal[True],
        **options: Unpack[TableOptions[K, V2]],
    ) -> KTable[K, V2]: ...

    def map_values(
        self,
        mapper: Callable[..., V2 | None],
        *,
        with_key: bool = False,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Replace the value of each row; a deleted row stays deleted.

        Args:
            mapper: called as ``mapper(value)``, never with None; None deletes the row.
            with_key: call ``mapper(key, value)`` instead.
            key: serde of the keys; None uses the table's.
            value: serde of the new values; None uses the setting ``default.value.serde``.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> lines = builder.table("lines", key=serdes.string, value=serdes.string)
            >>> lengths = lines.map_values(len, store="lengths", value=serdes.long)
            >>> lengths.to_stream().print(label="n")
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("lines").send_many([("a", "tea"), ("a", "jam"), ("a", "bread")])
            [n]: a, 3
            [n]: a, 5
        """
        mapped = mapped_values(mapper, with_key=with_key)
        return self._mapped(MAP_VALUES, mapped, store, key, value, name)

    def _mapped(
        self,
        prefix: str,
        function: Function,
        store: str | Materialized | None,
        key: AnySerde | None,
        value: AnySerde | None,
        name: str | None,
    ) -> KTable[K, Any]:
        options: dict[str, Any] = {"store": store, "key": key, "value": value, "name": name}
        return KTable(mapped_table(self._edge, prefix, function, **options))

    def transform_values(
        self,
        supplier: Callable[[], ValueTransformerWithKey[K, V, V2]],
        *,
        stores: Iterable[AnyStore] = (),
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Replace the value of each row with an object that may use state stores.

        The object has ``transform(key, value)``, which is called with None for a deleted row, and
        returns None to delete the row. It may have ``init(context)``, called before the first row
        with the context that opens its stores, and ``close()``.

        Args:
            supplier: a class or a function without arguments that returns a new object for each
                task.
            stores: the object's stores, by name or as `Stores` describes them.
            store: name or options of a store for the results; without it they are stored only if
                downstream nodes read them or their old values.
            key: serde of the keys; None uses the table's.
            value: serde of the results; None uses the setting ``default.value.serde``.

        Raises:
            TopologyError: the supplier returns another type.

        Examples:
            >>> from headrace import Stores, StreamsBuilder, TopologyTestDriver, serdes
            >>> class Rise:
            ...     def init(self, context):
            ...         self.before = context.store("before")
            ...     def transform(self, item, price):
            ...         before = self.before.get(item)
            ...         self.before.put(item, price)
            ...         return None if None in (before, price) else price - before
            >>> builder = StreamsBuilder()
            >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
            >>> before = Stores.key_value("before", key=serdes.string, value=serdes.long)
            >>> rises = prices.transform_values(Rise, stores=[before], value=serdes.long)
            >>> rises.to_stream().print(label="rise")
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("prices").send_many([("tea", 5), ("tea", 7)])
            [rise]: tea, None
            [rise]: tea, 2
        """
        options: dict[str, Any] = {"store": store, "key": key, "value": value, "name": name}
        return KTable(transformed_table(self._edge, supplier, stores=stores, **options))

    def group_by(
        self,
        mapper: Callable[[K, V], tuple[K2, V2]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> grouped_table.KGroupedTable[K2, V2]:
        """Group the rows by a new key and value that are computed from each row.

        A row for which either is None belongs to no group.

        Args:
            mapper: called as ``mapper(key, value)``, never with None as the value, returns the
                group's key and the row's value in the group. It must return the same for the same
                row each time.
            key: serde of the groups' keys; None uses the setting ``default.key.serde``.
            value: serde of the values; None uses the setting ``default.value.serde``.
            name: name of the node and of the repartition topic; None generates them.
        """
        draft = self._edge.draft
        node_name = draft.names.node("KTABLE-SELECT-", name)
        draft.readable(self._edge.node)
        spec = SelectGroup(mapper, key, node_name)
        node = draft.add(OperatorNode(node_name, (self._edge.node,), spec=spec))
        grouped = replace(self._edge, node=node, key=key, value=value)
        return grouped_table.KGroupedTable(grouped, name)

    def suppress(self, until: Suppressed, *, name: str | None = None) -> KTable[K, V]:
        """Buffer the changes of each row, and forward only the last change when its time has come.

        Time is stream time: no changes are forwarded while no new records arrive in the same
        partition.

        Args:
            until: when to forward: `Suppressed.until_window_closes` or
                `Suppressed.until_time_limit`.
            name: name of the node, and with the suffix ``-store`` of its store; None generates
                them.

        Raises:
            TopologyError: the table has no windows that could close.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import StreamsBuilder, Suppressed, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
            >>> limit = Suppressed.until_time_limit(timedelta(milliseconds=10))
            >>> prices.suppress(limit, name="calmer").to_stream().print(label="prices")
            >>> driver = TopologyTestDriver(builder.build())
            >>> for price, time in ((7, 0), (8, 4), (9, 10)):
            ...     driver.input("prices").send("tea", price, timestamp=time)
            [prices]: tea, 9
        """
        edge = self._edge
        names = edge.draft.names
        final = until.limit_ms is None
        nodes = by_name(node for step in edge.draft.steps() for node in step.nodes)
        if is_versioned(nodes, edge.node):
            raise TopologyError(
                "suppress() buffers a single change of a row, and this table keeps versions; "
                "suppress a table without history="
            )
        wait_ms = close_wait_ms(edge.draft, edge.node) if final else until.limit_ms
        assert wait_ms is not None
        # Unlike in other methods, a given name does not use up a number here.
        node_name = names.node("KTABLE-SUPPRESS-") if name is None else require_legal_name(name)
        store = (
            names.store("KTABLE-SUPPRESS-") if name is None else require_legal_name(f"{name}-store")
        )
        buffer = until.buffer
        spec = Suppress(
            store=store,
            table=edge.node,
            wait_ms=wait_ms,
            final=final,
            max_records=buffer.max_records,
            max_bytes=buffer.max_bytes,
            shut_down=buffer.when_full == "shut_down",
        )
        table = edge.draft.readable(edge.node)
        node = OperatorNode(
            node_name, (edge.node,), spec=spec, uses=(store,), view_uses=(store, *table)
        )
        rows = Store(buffer.spec(store), edge.key, BufferedSerde(edge.value))
        return KTable(replace(edge, node=edge.draft.add(node, store=rows)))

    @overload
    def to_stream(
        self, key_mapper: None = None, *, name: str | None = None
    ) -> kstream.KStream[K, V]: ...
    @overload
    def to_stream(
        self, key_mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> kstream.KStream[K2, V]: ...

    def to_stream(
        self, key_mapper: Callable[[K, V], Any] | None = None, *, name: str | None = None
    ) -> kstream.KStream[Any, V]:
        """Read the table's changes as a stream.

        Args:
            key_mapper: replaces the key of each change, called as ``key_mapper(key, value)`` with
                None as the value of a deleted row.
        """
        edge = self._edge
        node_name = edge.draft.names.node("KTABLE-TOSTREAM-", name)
        node = Stateless(node_name, (edge.node,), op="pass", stream=False)
        stream: kstream.KStream[K, V] = kstream.KStream(edge.then(node))
        return stream if key_mapper is None else stream.select_key(key_mapper)

    def to_sink(
        self,
        sink: ExternalSink,
        *,
        name: str,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
    ) -> None:
        """Write the rows to an external sink, which upserts and deletes them by key.

        It works as `KStream.to_sink`; a change that is replaced by a later change in the same
        transaction is not written.

        Args:
            sink: a sink with a key, such as ``SqliteSink(..., key=["id"])``.
            name: name of the node; positions are stored under the ``application.id`` and this name,
                so neither may change.

        Raises:
            TopologyError: it is not a sink, or it has no key.

        Examples:
            >>> from headrace import SqliteSink, StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> counts = builder.stream("words", key=serdes.string).group_by_key().count()
            >>> columns = {"word": str, "count": int}
            >>> counts.to_sink(SqliteSink("w.db", "counts", columns, key="word"), name="keep")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("words").send_many([("rose", 1), ("is", 1), ("rose", 1)])
            ...     sorted(driver.sink("keep").as_dict().items())
            [('is', 1), ('rose', 2)]
        """
        edge = self._edge
        given = replace(edge, key=key or edge.key, value=value or edge.value)
        add_external_sink(given, sink, name, table=True)

    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], R | None],
        *,
        foreign_key: None = None,
        **options: Unpack[TableOptions[K, R]],
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO], R],
        *,
        foreign_key: Callable[[V], K2 | None],
        with_key: Literal[False] = False,
        **options: Unpack[ForeignKeyJoinOptions[K, R]],
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[K, V, VO], R],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        **options: Unpack[ForeignKeyJoinOptions[K, R]],
    ) -> KTable[K, R]: ...

    def join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., R | None],
        *,
        foreign_key: Callable[..., Any] | None = None,
        **options: Any,
    ) -> KTable[K, R]:
        """Join each row with another table's row: the row of the same key, or of its foreign key.

        A change of either row creates a new result, with the later of the two rows' timestamps. A
        row without a row on the other side has no result.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
            >>> names = builder.table("names", key=serdes.string, value=serdes.string)
            >>> tags = prices.join(names, lambda price, name: f"{name}: {price}")
            >>> tags.to_stream().print(label="tag")
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("prices").send("t", 5)
            >>> driver.input("names").send("t", "tea")
            [tag]: t, tea: 5
            >>> driver.input("prices").send("t", None)
            [tag]: t, None

            With ``foreign_key`` the key of the other table's row is computed from each row.

            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> orders = builder.table("orders", key=serdes.string)
            >>> customers = builder.table("customers", key=serdes.string, value=serdes.string)
            >>> named = orders.join(
            ...     customers,
            ...     lambda order, customer: f"{order['what']} for {customer}",
            ...     foreign_key=lambda order: order["customer"],
            ...     store="named-orders",
            ...     name="by-customer",
            ... )
            >>> named.to_stream().to("out")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("orders").send("o1", {"customer": "c1", "what": "tea"})
            ...     driver.input("customers").send("c1", "Ann")
            ...     driver.input("customers").send("c1", "Anna")
            ...     [(record.key, record.value) for record in driver.output("out").read_all()]
            [('o1', 'tea for Ann'), ('o1', 'tea for Anna')]

        Args:
            other: the other table.
            joiner: called as ``joiner(value, other value)``.
            foreign_key: called as ``foreign_key(value)``, returns the other row's key, or None;
                without it, rows with equal keys are joined.
            **options: ``store``: name or options of the store of the results. ``key``, ``value``:
                their serdes. ``name``: prefix of the names of topics and nodes. Only with a foreign
                key: ``with_key``: call both functions with the row's key as the first argument;
                ``partitioner``, ``other_partitioner``: partitioners of this table's and the other
                table's keys, called as ``partitioner(topic, key, None, partitions)``.
        """
        if foreign_key is None:
            return self._made(primary_key_join(self._edge, other._edge, joiner, **options))
        edge = foreign_key_join(self._edge, other._edge, joiner, foreign_key=foreign_key, **options)
        return self._made(edge)

    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], R | None],
        *,
        foreign_key: None = None,
        **options: Unpack[TableOptions[K, R]],
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO | None], R],
        *,
        foreign_key: Callable[[V], K2 | None],
        with_key: Literal[False] = False,
        **options: Unpack[ForeignKeyJoinOptions[K, R]],
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[K, V, VO | None], R],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        **options: Unpack[ForeignKeyJoinOptions[K, R]],
    ) -> KTable[K, R]: ...

    def left_join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., R | None],
        *,
        foreign_key: Callable[..., Any] | None = None,
        **options: Any,
    ) -> KTable[K, R]:
        """Join each row with another table's row, by key or foreign key; a row without a match
        joins None.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> prices = builder.table("prices", key=serdes.string, value=serdes.long)
            >>> names = builder.table("names", key=serdes.string, value=serdes.string)
            >>> tags = prices.left_join(names, lambda price, name: [name, price])
            >>> tags.to_stream().print(label="tag")
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("prices").send("t", 5)
            [tag]: t, [None, 5]
            >>> driver.input("names").send("t", "tea")
            [tag]: t, ['tea', 5]

            With ``foreign_key`` the key of the other table's row is computed from each row.

            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> orders = builder.table("orders", key=serdes.string, value=serdes.string)
            >>> customers = builder.table("customers", key=serdes.string, value=serdes.string)
            >>> pairs = orders.left_join(
            ...     customers, lambda order, name: [order, name], foreign_key=lambda order: order
            ... )
            >>> pairs.to_stream().to("out")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("orders").send("o1", "c1")
            ...     driver.input("customers").send("c1", "Ann")
            ...     [(record.key, record.value) for record in driver.output("out").read_all()]
            [('o1', ['c1', None]), ('o1', ['c1', 'Ann'])]

        Args:
            joiner: called as ``joiner(value, other value)``, with None for a missing row.

        All other arguments are as in `join`.
        """
        if foreign_key is None:
            result = primary_key_join(
                self._edge, other._edge, joiner, emits_unmatched=(True, False), **options
            )
            return self._made(result)
        edge = foreign_key_join(
            self._edge, other._edge, joiner, foreign_key=foreign_key, outer=True, **options
        )
        return self._made(edge)

    def outer_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V | None, VO | None], R | None],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[R] | None = None,
        name: str | None = None,
    ) -> KTable[K, R]:
        """Join the rows of both tables by key; a missing row joins as None.

        Args:
            other: the other table.
            joiner: called as ``joiner(value, other value)``, either of which may be None, but not
                both; None is not a result.
            store: name or options of the store of the results; None computes them from the rows of
                both tables when they are read.
            key: serde of the results' keys; None uses this table's.
            value: serde of the results.
            name: name of the merging node, and prefix of the names of the other two nodes.

        Raises:
            TopologyError: the tables are of two builders.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> here = builder.table("here", key=serdes.string, value=serdes.long)
            >>> there = builder.table("there", key=serdes.string, value=serdes.long)
            >>> total = here.outer_join(there, lambda a, b: (a or 0) + (b or 0), store="total")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("here").send("tea", 2)
            ...     driver.input("there").send_many([("tea", 3), ("jam", 4)])
            ...     dict(driver.store("total"))
            {'jam': 4, 'tea': 5}
        """
        options: dict[str, Any] = {"store": store, "key": key, "value": value, "name": name}
        result = primary_key_join(
            self._edge, other._edge, joiner, emits_unmatched=(True, True), **options
        )
        return self._made(result)

    def _made(self, edge: Edge) -> KTable[Any, Any]:
        return KTable(edge)
