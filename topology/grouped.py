"""A stream that is grouped by its key, ready to be folded into a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from topology import ktable, serdes
from topology.draft import Edge
from topology.graph import Aggregate, AggregateOp, AnySerde, Function, Store
from topology.materialized import Materialized, materialized
from topology.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class KGroupedStream(Generic[K, V]):
    """What `KStream.group_by` and `KStream.group_by_key` return.

    A null value is left out by each of the folds. Where the key has changed since the records were
    last partitioned, the fold reads them from a repartition topic, so that all records of one key
    are folded by one task.
    """

    __slots__ = ("_edge", "_name")

    def __init__(self, edge: Edge, name: str | None) -> None:
        self._edge = edge
        self._name = name

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[int] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, int]:
        """Count the records of each key.

        Args:
            store: name or options of the store; None generates a name.
            key: serde of the store's keys; None takes that of the group.
            value: serde of the counts; None takes `serdes.long`.
            name: name of the node; None generates one.

        Returns:
            The table of counts.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        kept = materialized(store)
        options_alone = isinstance(store, Materialized) or key is not None or value is not None
        if kept.store is None and options_alone:
            # Kafka Streams uses up one number more for a store with options and no name.
            self._edge.draft.names.store("KSTREAM-AGGREGATE-")
        rows = (key or self._edge.key, value or serdes.long)
        return ktable.KTable(self._fold("count", kept, rows, name))

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, V]:
        """Combine the values of each key, two at a time; the first value is taken as it is.

        Args:
            reducer: called as ``reducer(old, value)``; None deletes the row.
            store: name or options of the store; None generates a name.
            key: serde of the store's keys; None takes that of the group.
            value: serde of the store's values; None takes that of the group.
            name: name of the node; None generates one.

        Returns:
            The table of combined values.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        rows = (key or self._edge.key, value or self._edge.value)
        edge = self._fold("reduce", materialized(store), rows, name, function=reducer)
        return ktable.KTable(edge)

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, A]:
        """Fold the values of each key into an aggregate.

        Args:
            initializer: makes the aggregate of a key that has none.
            aggregator: called as ``aggregator(key, value, aggregate)``; None deletes the row.
            store: name or options of the store; None generates a name.
            key: serde of the store's keys; None takes that of the group.
            value: serde of the aggregates; None takes the setting ``default.value.serde``.
            name: name of the node; None generates one.

        Returns:
            The table of aggregates.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        rows = (key or self._edge.key, value)
        edge = self._fold(
            "aggregate",
            materialized(store),
            rows,
            name,
            initializer=initializer,
            function=aggregator,
        )
        return ktable.KTable(edge)

    def _fold(
        self,
        op: AggregateOp,
        kept: Materialized,
        rows: tuple[AnySerde | None, AnySerde | None],
        name: str | None,
        *,
        initializer: Callable[[], Any] | None = None,
        function: Function | None = None,
    ) -> Edge:
        """Add the repartition, if one is needed, and the fold. The order of names matters."""
        names = self._edge.draft.names
        prefix = "KSTREAM-REDUCE-" if op == "reduce" else "KSTREAM-AGGREGATE-"
        store = names.store(prefix) if kept.store is None else kept.store
        node_name = names.node(prefix, name)
        edge = self._edge
        if edge.rekeyed:
            edge = edge.repartitioned(store if self._name is None else self._name)
        node = Aggregate(node_name, (edge.node,), op, store, initializer, function)
        key, value = rows
        edge.draft.add(node, store=Store(kept.spec(store), key, value))
        return replace(edge, node=node_name, key=key, value=value)
