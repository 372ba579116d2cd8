"""Grouped stream in session windows, to be aggregated into a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from headrace.topology import serdes
from headrace.topology.arguments import checked
from headrace.topology.dsl import ktable
from headrace.topology.dsl.steps.folding import add_fold, storing
from headrace.topology.dsl.steps.stream_steps import Late, add_late
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Aggregating, Counting, Fold, Reducing
from headrace.topology.graph.graph import AnySerde, Node
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.operators.windows.emission import Emit
from headrace.topology.operators.windows.sessions import SessionFold
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.serdes.windows_serde import SessionWindowedSerde
from headrace.topology.windows import SessionWindows, Windowed

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


@checked
class SessionWindowedKStream(Generic[K, V]):
    """Grouped stream in session windows, returned by `KGroupedStream.windowed_by`.

    A record is added to the sessions of its key that are within the inactivity gap. These sessions
    are merged, and their previous rows are deleted. The timestamp of a row is its session's end. A
    record that is too late for any session is dropped, and forwarded to ``late=`` if given. Unlike
    an aggregation of the whole stream, null values are aggregated.

    The arguments `store`, `key`, `value` and `name` are described at `KGroupedStream`; `key` is the
    serde of keys without their window. A store whose retention is too short is a `TopologyError`.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import SessionWindows, StreamsBuilder, TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key=serdes.string).group_by_key()
        >>> visits = clicks.windowed_by(SessionWindows(inactivity_gap=timedelta(minutes=30)))
        >>> _ = visits.count(store="visits")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for minute in (0, 10):
        ...         driver.input("clicks").send("ann", "x", timestamp=minute * 60_000)
        ...     [(key.window.end_ms, count) for key, count in driver.store("visits").items()]
        [(600000, 2)]
    """

    __slots__ = ("_edge", "_emit", "_late", "_name", "_windows")

    def __init__(
        self,
        edge: Edge,
        name: str | None,
        windows: SessionWindows,
        emit: Emit = "on_window_update",
        late: Late[K, V] | None = None,
    ) -> None:
        self._edge = edge
        self._name = name
        self._windows = windows
        self._emit: Emit = emit
        self._late = late

    def __repr__(self) -> str:
        return f"<SessionWindowedKStream of {self._edge}, {self._windows}>"

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[int] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], int]:
        """Count the records of each session.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import SessionWindows, StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=serdes.string, value=serdes.string)
            >>> ms = timedelta(milliseconds=1)
            >>> sessions = SessionWindows(inactivity_gap=5 * ms, grace=60 * ms)
            >>> counts = clicks.group_by_key().windowed_by(sessions).count(store="visits")
            >>> counts.to_stream().for_each(lambda key, count: print(key.key, *key.window, count))
            >>> driver = TopologyTestDriver(builder.build())
            >>> for time in (10, 18, 14):
            ...     driver.input("clicks").send("ann", "click", timestamp=time)
            ann 10 10 1
            ann 18 18 1
            ann 10 10 None
            ann 18 18 None
            ann 10 18 3
        """
        options_alone = isinstance(store, Materialized) or key is not None or value is not None
        return ktable.KTable(
            self._fold(
                Counting(),
                materialized(store),
                (key or self._edge.key, value or serdes.long),
                name,
                burn=options_alone,
            )
        )

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], V]:
        """Combine the values of each session with a function of two values, which also merges
        sessions.

        Args:
            reducer: called as ``reducer(old, value)``; None deletes the session.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import SessionWindows, StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> pages = builder.stream("pages", key=serdes.string, value=serdes.string)
            >>> ms = timedelta(milliseconds=1)
            >>> visits = pages.group_by_key().windowed_by(
            ...     SessionWindows(inactivity_gap=5 * ms, grace=60 * ms)
            ... )
            >>> paths = visits.reduce(lambda path, page: path + page, store="paths")
            >>> driver = TopologyTestDriver(builder.build())
            >>> for page, time in (("a", 10), ("b", 13), ("c", 20)):
            ...     driver.input("pages").send("ann", page, timestamp=time)
            >>> [(*key.window, path) for key, path in driver.store("paths").items()]
            [(10, 13, 'ab'), (20, 20, 'c')]
        """
        rows = (key or self._edge.key, value or self._edge.value)
        return ktable.KTable(self._fold(Reducing(reducer), materialized(store), rows, name))

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        merger: Callable[[K, A, A], A],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], A]:
        """Aggregate the values of each session.

        Args:
            initializer: returns an empty aggregate. Each record starts with an empty aggregate,
                which is merged with the aggregates of existing sessions before the record is added.
            aggregator: called as ``aggregator(key, value, aggregate)``; None deletes the session.
            merger: called as ``merger(key, one, other)`` with the aggregates of two sessions.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import SessionWindows, StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> pages = builder.stream("pages", key=serdes.string, value=serdes.string)
            >>> ms = timedelta(milliseconds=1)
            >>> visits = pages.group_by_key().windowed_by(
            ...     SessionWindows(inactivity_gap=5 * ms, grace=60 * ms)
            ... )
            >>> seen = visits.aggregate(
            ...     list,
            ...     lambda key, page, pages: [*pages, page],
            ...     lambda key, one, other: one + other,
            ...     store="seen",
            ... )
            >>> driver = TopologyTestDriver(builder.build())
            >>> for page, time in (("a", 10), ("b", 18), ("c", 14)):
            ...     driver.input("pages").send("ann", page, timestamp=time)
            >>> [(*key.window, pages) for key, pages in driver.store("seen").items()]
            [(10, 18, ['a', 'b', 'c'])]
        """
        rows = (key or self._edge.key, value)
        fold = Aggregating(initializer, aggregator, merger=merger)
        return ktable.KTable(self._fold(fold, materialized(store), rows, name))

    def _fold(
        self,
        fold: Fold,
        options: Materialized,
        rows: tuple[AnySerde | None, AnySerde | None],
        name: str | None,
        *,
        burn: bool = False,
    ) -> Edge:
        windows = self._windows
        key, value = SessionWindowedSerde(rows[0]), rows[1]

        def make(node: str, parent: str, store: str) -> tuple[Node, Store]:
            added = session_store(options, store, windows, key, value)
            assert added.spec.retention_ms is not None
            spec = SessionFold(
                store,
                fold,
                windows,
                retention_ms=added.spec.retention_ms,
                emit=self._emit,
            )
            reads_value = fold.reads_value or self._late is not None
            return storing(node, parent, spec, reads_value=reads_value), added

        edge, node = add_fold(
            self._edge, fold, make, options=options, group=self._name, name=name, burn=burn
        )
        add_late(edge, node, self._late)
        return replace(edge, node=node, key=key, value=value)


def session_store(
    options: Materialized,
    name: str,
    windows: SessionWindows,
    key: SessionWindowedSerde[Any],
    value: AnySerde | None,
) -> Store:
    least_ms = windows.gap_ms + windows.grace_ms
    return Store(options.timed_spec(name, "session", least_ms=least_ms), key, value)
