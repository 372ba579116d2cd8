"""Joins of a table with another one: by key, or by a key that each row names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from headrace.topology.dsl.materialized import Materialized, TableOptions
from headrace.topology.dsl.steps.foreign_key_join import Partitioner, foreign_key_join
from headrace.topology.dsl.steps.primary_key_join import primary_key_join
from headrace.topology.graph.draft import Edge
from headrace.topology.serdes import Serde

if TYPE_CHECKING:
    from headrace.topology.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
VO = TypeVar("VO")
R = TypeVar("R")


class OfForeignKey(TableOptions[K, R], total=False):
    """What a join by a foreign key may be given besides; see `KTable.join`."""

    partitioner: Partitioner | None
    other_partitioner: Partitioner | None


class TableJoins(Generic[K, V]):
    """The part of `KTable` that joins."""

    __slots__ = ()
    _edge: Edge

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
        **options: Unpack[OfForeignKey[K, R]],
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[K, V, VO], R],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        **options: Unpack[OfForeignKey[K, R]],
    ) -> KTable[K, R]: ...

    def join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., R | None],
        *,
        foreign_key: Callable[..., Any] | None = None,
        **options: Any,
    ) -> KTable[K, R]:
        """Join each row with another table's row: of the same key, or of the one that it names.

        Either row's change makes a new result, with the later of the two rows' timestamps. A row
        without one on the other side has no result.

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

        With ``foreign_key`` each row names the key of the other table's row.

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
                without it, rows of equal keys are joined.
            **options: ``store``: name or options of the store of the results. ``key``, ``value``:
                their serdes. ``name``: what the topics and steps are named after. With a foreign
                key besides, ``with_key``: call both functions with the row's key in front;
                ``partitioner``, ``other_partitioner``: where keys of this table, and of the other
                one, are, called as ``partitioner(topic, key, None, partitions)``.

        Returns:
            The table of the results, by the keys of this one.

        Raises:
            TopologyError: a name is not legal or is taken.
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
        **options: Unpack[OfForeignKey[K, R]],
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[K, V, VO | None], R],
        *,
        foreign_key: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        **options: Unpack[OfForeignKey[K, R]],
    ) -> KTable[K, R]: ...

    def left_join(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., R | None],
        *,
        foreign_key: Callable[..., Any] | None = None,
        **options: Any,
    ) -> KTable[K, R]:
        """Join each row with the row of another table, by key or the one it names, or with None.

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

        With ``foreign_key`` each row names the key of the other table's row.

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
            other: the other table.
            joiner: called as ``joiner(value, other value)``, with None for a row that is not there.
            foreign_key: called as ``foreign_key(value)``, returns the other row's key, or None;
                without it, rows of equal keys are joined.
            **options: as those of `join`.

        Returns:
            The table of the results, by the keys of this one.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        if foreign_key is None:
            alone = (True, False)
            return self._made(
                primary_key_join(self._edge, other._edge, joiner, alone=alone, **options)
            )
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
        """Join the rows of both tables by key; where one has no row, it joins as None.

        Args:
            other: the other table.
            joiner: called as ``joiner(value, other value)``, either of which may be None, but not
                both; None is no result.
            store: name or options of the store of the results; None computes them from the rows of
                both tables where somebody reads them.
            key: serde of the results' keys; None takes that of this table.
            value: serde of the results.
            name: name of the merging node, and before the names of the other two.

        Returns:
            The table of the results.

        Raises:
            TopologyError: the tables are of two builders, or a name is not legal or is taken.

        Example:
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
        alone = (True, True)
        return self._made(primary_key_join(self._edge, other._edge, joiner, alone=alone, **options))

    def _made(self, edge: Edge) -> KTable[Any, Any]:
        made: Callable[[Edge], KTable[Any, Any]] = type(self)  # type: ignore[assignment]
        return made(edge)
