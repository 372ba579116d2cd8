"""Grouped table: rows grouped by a new key, to be aggregated into another table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from headrace.topology import serdes
from headrace.topology.arguments import checked
from headrace.topology.dsl import ktable
from headrace.topology.dsl.steps.folding import storing
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Aggregating, Counting, Fold, Reducing
from headrace.topology.graph.graph import AnySerde, Sink, SourceNode
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.operators.table_group import TableFold
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.serdes.changed import ChangedSerde

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

_AGGREGATE = "KTABLE-AGGREGATE-"


@checked
class KGroupedTable(Generic[K, V]):
    """Table grouped by a new key, returned by `KTable.group_by`.

    A row counts once in its group. When it changes, its old value is subtracted and its new value
    is added; when it is deleted, its old value is subtracted. Both go through a repartition topic,
    so that a single task has all rows of a group. An aggregation must not depend on the order of
    rows, because rows of several partitions come in any order.

    The arguments `store`, `key`, `value` and `name` are described at `KGroupedStream`.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> cities = builder.table("cities", key=serdes.string, value=serdes.string)
        >>> by_city = cities.group_by(lambda user, city: (city, user), key=serdes.string)
        >>> by_city
        <KGroupedTable of KTABLE-SELECT-0000000003 key=string>
        >>> _ = by_city.count(store="users")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("cities").send_many([("ann", "Oslo"), ("bo", "Oslo"), ("ann", "Bern")])
        ...     dict(driver.store("users"))
        {'Bern': 1, 'Oslo': 1}
    """

    __slots__ = ("_edge", "_name", "_source")

    def __init__(self, edge: Edge, name: str | None) -> None:
        self._edge = edge
        self._name = name
        self._source: str | None = None
        """Source node of the repartition topic, after it was added."""

    def __repr__(self) -> str:
        return f"<KGroupedTable of {self._edge}>"

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[int] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, int]:
        """Count the rows of each group.

        Returns:
            The table of counts. A group that has lost all its rows counts 0.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> homes = builder.table("homes", key=serdes.string, value=serdes.string)
            >>> by_city = homes.group_by(
            ...     lambda person, city: (city, person),
            ...     key=serdes.string,
            ...     value=serdes.string,
            ...     name="by-city",
            ... )
            >>> by_city.count(store="people").to_stream().to("out")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("homes").send_many([("Ann", "Rome"), ("Ben", "Rome")])
            ...     driver.input("homes").send("Ben", "Oslo")
            ...     dict(driver.store("people"))
            {'Oslo': 1, 'Rome': 1}
        """
        return ktable.KTable(self._fold(Counting(), store, key, value or serdes.long, name))

    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, V]:
        """Combine the values of each group with a function of two values; the first value is used
        unchanged.

        Args:
            adder: called as ``adder(aggregate, value)`` for a row that joins the group; None
                deletes the group's row.
            subtractor: called as ``subtractor(aggregate, value)`` for a row that leaves it; None
                deletes the group's row.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=serdes.string)
            >>> by_shelf = stock.group_by(
            ...     lambda item, row: (row["shelf"], row["pieces"]),
            ...     key=serdes.string,
            ...     value=serdes.long,
            ... )
            >>> pieces = by_shelf.reduce(lambda a, b: a + b, lambda a, b: a - b, store="pieces")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("stock").send("tea", {"shelf": "left", "pieces": 3})
            ...     driver.input("stock").send("jam", {"shelf": "left", "pieces": 4})
            ...     driver.input("stock").send("tea", {"shelf": "left", "pieces": 2})
            ...     dict(driver.store("pieces"))
            {'left': 6}
        """
        fold = Reducing(adder, subtractor)
        return ktable.KTable(self._fold(fold, store, key, value or self._edge.value, name))

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, A]:
        """Aggregate the values of each group.

        Args:
            initializer: returns the initial aggregate of a group.
            adder: called as ``adder(key, value, aggregate)`` for a row that joins the group; None
                deletes the group's row.
            subtractor: called as ``subtractor(key, value, aggregate)`` for a row that leaves it;
                None deletes the group's row.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> homes = builder.table("homes", key=serdes.string, value=serdes.string)
            >>> names = homes.group_by(
            ...     lambda person, city: (city, person), key=serdes.string, value=serdes.string
            ... ).aggregate(
            ...     list,
            ...     lambda city, person, people: sorted([*people, person]),
            ...     lambda city, person, people: [one for one in people if one != person] or None,
            ...     store="names",
            ... )
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("homes").send_many([("Ann", "Rome"), ("Ben", "Rome")])
            ...     driver.input("homes").send_many([("Ben", None), ("Cleo", "Oslo")])
            ...     dict(driver.store("names"))
            {'Oslo': ['Cleo'], 'Rome': ['Ann']}
        """
        fold = Aggregating(initializer, adder, subtractor)
        return ktable.KTable(self._fold(fold, store, key, value, name))

    def _fold(
        self,
        fold: Fold,
        store: str | Materialized | None,
        key: AnySerde | None,
        value: AnySerde | None,
        name: str | None,
    ) -> Edge:
        """Add the repartition topic and the aggregation. The order of generated names matters."""
        edge, options = self._edge, materialized(store)
        names = edge.draft.names
        store_name = names.store(_AGGREGATE) if options.store is None else options.store
        sink = names.node("KSTREAM-SINK-", None if name is None else f"{name}-sink")
        source = names.node("KSTREAM-SOURCE-", None if name is None else f"{name}-source")
        node_name = names.node(f"KTABLE-{fold.title}-", name)
        if self._source is None or self._name is None:
            self._repartition(store_name, sink, source)
        else:
            source = self._source
        node = storing(node_name, source, TableFold(store_name, fold))
        result = replace(edge, node=node_name, key=key or edge.key, value=value)
        edge.draft.add(node, store=Store(options.spec(store_name), result.key, value))
        return result

    def _repartition(self, store: str, sink: str, source: str) -> None:
        edge = self._edge
        topic = f"{self._name or store}-repartition"
        both: tuple[Any, Any] = edge.key, ChangedSerde(edge.value)
        edge.draft.add(
            Sink(sink, (edge.node,), topic, *both, internal=True),
            SourceNode(source, topics=(topic,), key=edge.key, value=both[1], internal=True),
        )
        self._source = source
