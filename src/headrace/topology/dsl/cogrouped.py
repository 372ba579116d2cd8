"""Cogrouped streams: several grouped streams aggregated into a single table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

from headrace.topology.arguments import checked
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.dsl import grouped, ktable
from headrace.topology.dsl.session_windowed import session_store
from headrace.topology.dsl.steps.folding import size_ms, storing, windowed_fold
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Aggregating
from headrace.topology.graph.graph import AnySerde, OperatorNode
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.naming import require_legal_name
from headrace.topology.operators.cogroup import (
    CogroupInput,
    CogroupMerge,
    KeyedFold,
    aggregate_tagged,
)
from headrace.topology.operators.windows.sessions import SessionFold
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.serdes.windows_serde import (
    SessionWindowedSerde,
    TimeWindowedSerde,
    WindowStoreSerde,
)
from headrace.topology.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
)

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

Group = tuple["grouped.KGroupedStream[Any, Any]", Callable[[Any, Any, Any], Any]]
Made = tuple[Store, OperatorSpec]
"""A store and the aggregation that it stores."""

_AGGREGATE = "COGROUPKSTREAM-AGGREGATE-"
_MERGE = "COGROUPKSTREAM-MERGE-"


@checked
class CogroupedKStream(Generic[K, A]):
    """Grouped streams with the same kind of key and their aggregators; returned by
    `KGroupedStream.cogroup`.

    They share a store. Null values are dropped, as in any aggregation of whole streams.

    The arguments of `aggregate`, also with windows, are described at `KGroupedStream`; `name` is
    the prefix of the nodes' names; `key` None uses the groups' serde if all have the same.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> cash, cards = (
        ...     builder.stream(topic, key=serdes.string, value=serdes.long).group_by_key()
        ...     for topic in ("cash", "cards")
        ... )
        >>> def add(key, amount, total):
        ...     return total + amount
        >>> both = cash.cogroup(add).cogroup(cards, add)
        >>> _ = both.aggregate(lambda: 0, store="total", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("cash").send("tea", 3)
        ...     driver.input("cards").send("tea", 4)
        ...     driver.store("total")["tea"]
        7
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self._groups = groups

    def __repr__(self) -> str:
        return f"<CogroupedKStream of {[group for group, _ in self._groups]}>"

    def cogroup(
        self, other: grouped.KGroupedStream[K, V], aggregator: Callable[[K, V, A], A]
    ) -> CogroupedKStream[K, A]:
        """Add another grouped stream with its aggregator.

        Args:
            other: the stream, grouped by the same kind of key; a stream that was already added gets
                the new aggregator.
            aggregator: called as ``aggregator(key, value, aggregate)`` with its values; None
                deletes the row.

        Returns:
            All streams; this object does not change.

        Raises:
            TopologyError: the stream comes from another builder.
        """
        if other._edge.draft is not self._groups[0][0]._edge.draft:
            raise TopologyError(
                "cogroup() was given a stream of another builder; use a single builder"
            )
        # A stream that was already added keeps its position, as in Kafka Streams.
        return CogroupedKStream(tuple({**dict(self._groups), other: aggregator}.items()))

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, A]:
        """Aggregate the values of all streams by key.

        Args:
            initializer: returns the initial aggregate of a key.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> bought = builder.stream("bought", key=serdes.string).group_by_key()
            >>> returned = builder.stream("returned", key=serdes.string).group_by_key()
            >>> balance = (
            ...     bought.cogroup(lambda customer, price, total: total + price)
            ...     .cogroup(returned, lambda customer, price, total: total - price)
            ...     .aggregate(lambda: 0, store="balance")
            ... )
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("bought").send("ann", 10)
            >>> driver.input("returned").send("ann", 3)
            >>> dict(driver.store("balance"))
            {'ann': 7}
        """
        options = materialized(store)
        row_key = key or _shared_key(self._groups)

        def make(store_name: str) -> Made:
            rows = Store(options.spec(store_name), row_key, value)
            return rows, KeyedFold(store_name, Aggregating(initializer, aggregate_tagged))

        edge = _cogroup(self._groups, options, name, make, folds_nulls=False)
        return ktable.KTable(replace(edge, key=row_key, value=value))

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows
    ) -> TimeWindowedCogroupedKStream[K, A]: ...
    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, A]: ...

    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream[K, A] | SessionWindowedCogroupedKStream[K, A]:
        """Aggregate by key and window; the streams share their stream time.

        Args:
            windows: the kind and size of the windows.
        """
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._groups, windows)
        return TimeWindowedCogroupedKStream(self._groups, windows)


@checked
class TimeWindowedCogroupedKStream(Generic[K, A]):
    """Cogrouped streams in time, sliding or unlimited windows; see `CogroupedKStream`.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> cash = builder.stream("cash", key=serdes.string, value=serdes.long).group_by_key()
        >>> minutes = cash.cogroup(lambda key, amount, total: total + amount).windowed_by(
        ...     TimeWindows(size=timedelta(minutes=1))
        ... )
        >>> _ = minutes.aggregate(lambda: 0, store="totals", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("cash").send_many([("tea", 3), ("tea", 4)])
        ...     [(key.window.end_ms, total) for key, total in driver.store("totals").items()]
        [(60000, 7)]
    """

    __slots__ = ("_groups", "_windows")

    def __init__(
        self,
        groups: tuple[Group, ...],
        windows: TimeWindows | SlidingWindows | UnlimitedWindows,
    ) -> None:
        self._groups = groups
        self._windows = windows

    def __repr__(self) -> str:
        return f"<TimeWindowedCogroupedKStream of {[group for group, _ in self._groups]}>"

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], A]:
        """Aggregate the values of all streams by key and window.

        Args:
            initializer: returns the initial aggregate of a window.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> bought = builder.stream("bought", key=serdes.string).group_by_key()
            >>> returned = builder.stream("returned", key=serdes.string).group_by_key()
            >>> balance = (
            ...     bought.cogroup(lambda customer, price, total: total + price)
            ...     .cogroup(returned, lambda customer, price, total: total - price)
            ...     .windowed_by(TimeWindows(size=timedelta(milliseconds=10)))
            ...     .aggregate(lambda: 0, store="balance")
            ... )
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("bought").send("ann", 10, timestamp=5)
            >>> driver.input("returned").send("ann", 3, timestamp=8)
            >>> [(key.window.start_ms, total) for key, total in driver.store("balance").items()]
            [(0, 7)]
        """
        options = materialized(store)
        windows = self._windows
        windowed: TimeWindowedSerde[K] = TimeWindowedSerde(
            key or _shared_key(self._groups), size_ms(windows)
        )
        fold = Aggregating(initializer, aggregate_tagged)

        def make(store_name: str) -> Made:
            spec, rows = windowed_fold(windows, fold, store_name, options)
            return Store(rows, WindowStoreSerde(windowed), value), spec

        folds_nulls = not isinstance(windows, SlidingWindows)
        edge = _cogroup(self._groups, options, name, make, folds_nulls=folds_nulls)
        return ktable.KTable(replace(edge, key=windowed, value=value))


@checked
class SessionWindowedCogroupedKStream(Generic[K, A]):
    """Cogrouped streams in session windows; see `CogroupedKStream`.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import SessionWindows, StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key=serdes.string, value=serdes.long).group_by_key()
        >>> visits = clicks.cogroup(lambda key, count, total: total + count).windowed_by(
        ...     SessionWindows(inactivity_gap=timedelta(minutes=30))
        ... )
        >>> _ = visits.aggregate(
        ...     lambda: 0, lambda key, one, other: one + other, store="totals", value=serdes.long
        ... )
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("clicks").send("ann", 1, timestamp=0)
        ...     driver.input("clicks").send("ann", 1, timestamp=60_000)
        ...     [(key.window.end_ms, total) for key, total in driver.store("totals").items()]
        [(60000, 2)]
    """

    __slots__ = ("_groups", "_windows")

    def __init__(self, groups: tuple[Group, ...], windows: SessionWindows) -> None:
        self._groups = groups
        self._windows = windows

    def __repr__(self) -> str:
        return f"<SessionWindowedCogroupedKStream of {[group for group, _ in self._groups]}>"

    def aggregate(
        self,
        initializer: Callable[[], A],
        merger: Callable[[K, A, A], A],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], A]:
        """Aggregate the values of all streams by key and session.

        Args:
            initializer: returns an empty aggregate.
            merger: called as ``merger(key, one, other)`` with the aggregates of two sessions.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import SessionWindows, StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> seen = builder.stream("seen", key=serdes.string).group_by_key()
            >>> bought = builder.stream("bought", key=serdes.string).group_by_key()
            >>> visits = (
            ...     seen.cogroup(lambda customer, page, path: [*path, page])
            ...     .cogroup(bought, lambda customer, price, path: [*path, price])
            ...     .windowed_by(SessionWindows(inactivity_gap=timedelta(milliseconds=5)))
            ...     .aggregate(list, lambda customer, one, other: one + other, store="visits")
            ... )
            >>> driver = TopologyTestDriver(builder.build())
            >>> driver.input("seen").send("ann", "tea", timestamp=10)
            >>> driver.input("bought").send("ann", 3, timestamp=14)
            >>> [(*key.window, path) for key, path in driver.store("visits").items()]
            [(10, 14, ['tea', 3])]
        """
        options = materialized(store)
        windowed = SessionWindowedSerde(key or _shared_key(self._groups))
        windows = self._windows

        def make(store_name: str) -> Made:
            rows = session_store(options, store_name, windows, windowed, value)
            assert rows.spec.retention_ms is not None
            return rows, SessionFold(
                store_name,
                Aggregating(initializer, aggregate_tagged, merger=merger),
                windows,
                retention_ms=rows.spec.retention_ms,
            )

        edge = _cogroup(self._groups, options, name, make, folds_nulls=True)
        return ktable.KTable(replace(edge, key=windowed, value=value))


def _cogroup(
    groups: tuple[Group, ...],
    options: Materialized,
    name: str | None,
    make: Callable[[str], Made],
    *,
    folds_nulls: bool,
) -> Edge:
    """Add repartition topics, a node for each stream and the merge, in Kafka Streams' order."""
    first = groups[0][0]._edge
    draft, names = first.draft, first.draft.names
    store_name = names.store(_AGGREGATE) if options.store is None else options.store
    rows, fold = make(store_name)
    edges = [_partitioned(group, groups, store_name) for group, _ in groups]
    nodes: list[str] = []
    for number, (edge, (_, aggregator)) in enumerate(zip(edges, groups, strict=True)):
        given = None if name is None else require_legal_name(f"{name}-cogroup-agg-{number}")
        spec = CogroupInput(store_name, fold, aggregator, folds_nulls)
        node = storing(names.node(_AGGREGATE, given), edge.node, spec)
        nodes.append(draft.add(node, store=None if nodes else rows))
    given = None if name is None else require_legal_name(f"{name}-cogroup-merge")
    merge = OperatorNode(
        names.node(_MERGE, given), tuple(nodes), spec=CogroupMerge(fold), view_uses=(store_name,)
    )
    return replace(first, node=draft.add(merge), rekeyed=False)


def _partitioned(
    group: grouped.KGroupedStream[Any, Any], groups: tuple[Group, ...], store: str
) -> Edge:
    """Repartition a stream if necessary; new keys without a serde use the other streams' serde."""
    edge = group._edge
    if not edge.rekeyed:
        return edge
    edge = replace(edge, key=edge.key or _shared_key(groups))
    return edge.repartitioned(store if group._name is None else group._name)


def _shared_key(groups: tuple[Group, ...]) -> AnySerde | None:
    """Return the key serde that all streams share, or None; streams with new keys may have none."""
    edges = [group._edge for group, _ in groups]
    keys = [edge.key for edge in edges if edge.key is not None or not edge.rekeyed]
    return keys[0] if keys and all(key == keys[0] for key in keys) else None
