"""A table: the last value of each key, and the stream of its changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, overload

from topology import kstream
from topology.draft import Edge
from topology.foreign_key_join import Partitioner, foreign_key_join
from topology.graph import Function, Operator, Stateless, Store
from topology.materialized import Materialized
from topology.naming import legal
from topology.operators.buffered import BufferedSerde
from topology.operators.suppress import Suppress
from topology.serdes import Serde
from topology.suppressed import Suppressed, close_wait_ms

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")
R = TypeVar("R")


class KTable(Generic[K, V]):
    """Rows by key. What flows from it is each change: the new value, None where the row is gone."""

    __slots__ = ("_edge",)

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which the predicate holds; another row counts as deleted.

        Args:
            predicate: called as ``predicate(key, value)``, never with None as the value.
            name: name of the node; None generates one.
        """

        def kept(key: K, value: V | None) -> V | None:
            return value if value is not None and predicate(key, value) else None

        return self._mapped("KTABLE-FILTER-", kept, name)

    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which the predicate does not hold; another row counts as deleted.

        Args:
            predicate: called as ``predicate(key, value)``, never with None as the value.
            name: name of the node; None generates one.
        """

        def kept(key: K, value: V | None) -> V | None:
            return None if value is None or predicate(key, value) else value

        return self._mapped("KTABLE-FILTER-", kept, name)

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, with_key: Literal[True], name: str | None = None
    ) -> KTable[K, V2]: ...

    def map_values(
        self, mapper: Callable[..., V2], *, with_key: bool = False, name: str | None = None
    ) -> KTable[K, V2]:
        """Compute each row's value anew; a deleted row stays deleted.

        Args:
            mapper: called as ``mapper(value)``, never with None; None deletes the row.
            with_key: call ``mapper(key, value)`` instead.
            name: name of the node; None generates one.
        """
        if with_key:

            def mapped(key: K, value: V | None) -> V2 | None:
                return None if value is None else mapper(key, value)

        else:

            def mapped(key: K, value: V | None) -> V2 | None:  # noqa: ARG001
                return None if value is None else mapper(value)

        table: KTable[K, V2] = self._mapped("KTABLE-MAPVALUES-", mapped, name)
        return KTable(replace(table._edge, value=None))

    def _mapped(self, prefix: str, function: Function, name: str | None) -> KTable[K, Any]:
        # As a stream's operator would do it: a row that is filtered out must say so downstream.
        edge = self._edge
        node_name = edge.draft.names.node(prefix, name)
        node = Stateless(node_name, (edge.node,), op="map_values", function=function, stream=False)
        return KTable(edge.then(node))

    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO], R],
        *,
        foreign_key: Callable[[V], K2 | None],
        with_key: Literal[False] = False,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[R] | None = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[K, V, VO], R],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[R] | None = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable[K, R]: ...

    def join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., R],
        *,
        foreign_key: Callable[..., Any],
        **options: Any,
    ) -> KTable[K, R]:
        """Join each row with the row of another table that it names.

        >>> from streams.testing import TopologyTestDriver
        >>> from topology import StreamsBuilder, serdes
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
            foreign_key: called as ``foreign_key(value)``, returns the other row's key, or None.
            **options: ``with_key``: call both functions with the row's key in front. ``store``:
                name or options of the store of the results. ``key``, ``value``: their serdes.
                ``name``: what the topics and steps are named after. ``partitioner``,
                ``other_partitioner``: where keys of this table, and of the other one, are, called
                as ``partitioner(topic, key, None, partitions)``.

        Returns:
            The table of the results, by the keys of this one.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        edge = foreign_key_join(self._edge, other._edge, joiner, foreign_key=foreign_key, **options)
        return KTable(edge)

    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO | None], R],
        *,
        foreign_key: Callable[[V], K2 | None],
        with_key: Literal[False] = False,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[R] | None = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[K, V, VO | None], R],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[R] | None = None,
        name: str | None = None,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
    ) -> KTable[K, R]: ...

    def left_join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., R],
        *,
        foreign_key: Callable[..., Any],
        **options: Any,
    ) -> KTable[K, R]:
        """Join each row with the row of another table that it names, or with None.

        >>> from streams.testing import TopologyTestDriver
        >>> from topology import StreamsBuilder, serdes
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
            other: the other table.
            joiner: called as ``joiner(value, other value)``, with None for a row that is not there.
            foreign_key: called as ``foreign_key(value)``, returns the other row's key, or None.
            **options: as those of `join`.

        Returns:
            The table of the results, by the keys of this one.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        edge = foreign_key_join(
            self._edge, other._edge, joiner, foreign_key=foreign_key, outer=True, **options
        )
        return KTable(edge)

    def suppress(self, until: Suppressed, *, name: str | None = None) -> KTable[K, V]:
        """Hold back the changes of each row, and send on the last of them when its time has come.

        Time is stream time: nothing is sent on while nothing new comes in the same partition.

        Args:
            until: when it has: `Suppressed.until_window_closes` or `Suppressed.until_time_limit`.
            name: name of the node, and of its store with ``-store`` behind it; None generates them.

        Returns:
            The table of what was sent on.

        Raises:
            TopologyError: the table has no windows that could close, or the name is not legal or
                is taken.

        Example:
            >>> from datetime import timedelta
            >>> from streams.testing import TopologyTestDriver
            >>> from topology import StreamsBuilder, Suppressed, serdes
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
        wait_ms = close_wait_ms(edge.draft, edge.node) if final else until.limit_ms
        assert wait_ms is not None
        # Unlike elsewhere, a given name uses up no number here.
        node_name = names.node("KTABLE-SUPPRESS-") if name is None else legal(name)
        store = names.store("KTABLE-SUPPRESS-") if name is None else legal(f"{name}-store")
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
        node = Operator(
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
            key_mapper: gives each change another key, called as ``key_mapper(key, value)`` with
                None as the value of a row that is gone.
            name: name of the node; None generates one.

        Returns:
            The stream of changes.

        Raises:
            TopologyError: the name is not legal or is taken.
        """
        edge = self._edge
        node_name = edge.draft.names.node("KTABLE-TOSTREAM-", name)
        node = Stateless(node_name, (edge.node,), op="pass", stream=False)
        stream: kstream.KStream[K, V] = kstream.KStream(edge.then(node))
        return stream if key_mapper is None else stream.select_key(key_mapper)
