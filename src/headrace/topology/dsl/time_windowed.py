"""Grouped stream in time windows, to be aggregated into a windowed table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from headrace.topology import serdes
from headrace.topology.arguments import checked
from headrace.topology.dsl import ktable
from headrace.topology.dsl.steps.folding import TimeSpans, add_fold, size_ms, storing, windowed_fold
from headrace.topology.dsl.steps.stream_steps import Late, add_late
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Aggregating, Counting, Fold, Reducing
from headrace.topology.graph.graph import AnySerde, OperatorNode
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.operators.windows.emission import Emit
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.serdes.windows_serde import TimeWindowedSerde, WindowStoreSerde
from headrace.topology.windows import SlidingWindows, UnlimitedWindows, Windowed

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


@checked
class TimeWindowedKStream(Generic[K, V]):
    """Grouped stream in time windows, returned by `KGroupedStream.windowed_by`.

    Each aggregation creates a table with a row for each key and window. A record changes the rows
    of all windows that contain its timestamp and are not closed. A row's timestamp is the largest
    timestamp of its records.

    Time windows and unlimited windows aggregate null values; sliding windows drop them.

    The arguments `store`, `key`, `value` and `name` are described at `KGroupedStream`; `key` is the
    serde of keys without their window. A store whose retention is too short is a `TopologyError`.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> visits = builder.stream("visits", key=serdes.string).group_by_key()
        >>> minutes = visits.windowed_by(TimeWindows(size=timedelta(minutes=1)))
        >>> minutes.count(store="per-minute").to_stream().to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for second in (5, 59, 61):
        ...         driver.input("visits").send("home", "x", timestamp=second * 1000)
        ...     for record in driver.output("out").read_all():
        ...         print(record.key, record.value)
        Windowed(key='home', window=Window(start_ms=0, end_ms=60000)) 1
        Windowed(key='home', window=Window(start_ms=0, end_ms=60000)) 2
        Windowed(key='home', window=Window(start_ms=60000, end_ms=120000)) 1
    """

    __slots__ = ("_edge", "_emit", "_late", "_name", "_windows")

    def __init__(
        self,
        edge: Edge,
        name: str | None,
        windows: TimeSpans,
        emit: Emit,
        late: Late[K, V] | None,
    ) -> None:
        if isinstance(windows, UnlimitedWindows) and emit == "on_window_close":
            raise TopologyError(
                "unlimited windows are never closed, so nothing would be emitted; leave out emit="
            )
        self._edge = edge
        self._name = name
        self._windows = windows
        self._emit = emit
        self._late = late

    def __repr__(self) -> str:
        return f"<TimeWindowedKStream of {self._edge}, {self._windows}>"

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[int] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], int]:
        """Count the records of each key in each window.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver
            >>> builder = StreamsBuilder()
            >>> ms = timedelta(milliseconds=1)
            >>> hopping = TimeWindows(size=10 * ms, advance=5 * ms)
            >>> calls = builder.stream("calls", key=serdes.string).group_by_key()
            >>> counts = calls.windowed_by(hopping).count(store="counts")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("calls").send("a", "x", timestamp=7)
            ...     [(key.window.start_ms, n) for key, n in driver.store("counts").items()]
            [(0, 1), (5, 1)]
        """
        options_alone = isinstance(store, Materialized) or key is not None or value is not None
        # Kafka Streams uses up an additional number for a store with options and no name.
        burn = options_alone and not isinstance(self._windows, SlidingWindows)
        rows = (key or self._edge.key, value or serdes.long)
        return self._folded(Counting(), store, rows, name, burn=burn)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], V]:
        """Combine the values of each key and window with a function of two values; the first is
        used unchanged.

        Args:
            reducer: called as ``reducer(old, value)``; None deletes the row. In time windows it
                also receives null values.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver
            >>> builder = StreamsBuilder()
            >>> rooms = builder.stream("celsius", key=serdes.string).group_by_key()
            >>> hours = rooms.windowed_by(TimeWindows(size=timedelta(hours=1)))
            >>> highest = hours.reduce(max, store="highest")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("celsius").send_many([("attic", 21), ("attic", 19)])
            ...     list(driver.store("highest").values())
            [21]
        """
        rows = (key or self._edge.key, value or self._edge.value)
        return self._folded(Reducing(reducer), store, rows, name)

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[Windowed[K], A]:
        """Aggregate the values of each key and window.

        Args:
            initializer: returns the initial aggregate of a window.
            aggregator: called as ``aggregator(key, value, aggregate)``; None deletes the row. In
                time windows it also receives null values.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import SlidingWindows, StreamsBuilder, TopologyTestDriver
            >>> builder = StreamsBuilder()
            >>> payments = builder.stream("payments", key=serdes.string).group_by_key()
            >>> near = SlidingWindows(time_difference=timedelta(milliseconds=10))
            >>> sums = payments.windowed_by(near).aggregate(
            ...     lambda: 0, lambda _, amount, total: total + amount, store="sums"
            ... )
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("payments").send("ann", 5, timestamp=20)
            ...     driver.input("payments").send("ann", 7, timestamp=26)
            ...     for (_, window), total in driver.store("sums").items():
            ...         print(window.start_ms, window.end_ms, total)
            10 20 5
            16 26 12
            21 31 7
        """
        fold = Aggregating(initializer, aggregator)
        return self._folded(fold, store, (key or self._edge.key, value), name)

    def _folded(
        self,
        fold: Fold,
        store: str | Materialized | None,
        rows: tuple[AnySerde | None, AnySerde | None],
        name: str | None,
        *,
        burn: bool = False,
    ) -> ktable.KTable[Windowed[K], Any]:
        windowed: TimeWindowedSerde[K] = TimeWindowedSerde(rows[0], size_ms(self._windows))
        options = materialized(store)

        def make(node: str, parent: str, store_name: str) -> tuple[OperatorNode, Store]:
            spec, added = windowed_fold(self._windows, fold, store_name, options, self._emit)
            reads_value = fold.reads_value or self._late is not None
            operator = storing(node, parent, spec, reads_value=reads_value)
            return operator, Store(added, WindowStoreSerde(windowed), rows[1])

        edge, node = add_fold(
            self._edge, fold, make, options=options, group=self._name, name=name, burn=burn
        )
        add_late(edge, node, self._late)
        return ktable.KTable(replace(edge, node=node, key=windowed, value=rows[1]))
