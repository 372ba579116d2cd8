"""Grouped stream: records grouped by key, to be aggregated into a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

from headrace.topology import serdes
from headrace.topology.arguments import checked
from headrace.topology.dsl import cogrouped, ktable, session_windowed, time_windowed
from headrace.topology.dsl.steps.folding import add_fold
from headrace.topology.dsl.steps.stream_steps import Late
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Aggregating, Counting, Fold, Reducing
from headrace.topology.graph.graph import Aggregate, AnySerde, Node
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.operators.windows.emission import Emit
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


@checked
class KGroupedStream(Generic[K, V]):
    """Stream grouped by key, returned by `KStream.group_by` and `KStream.group_by_key`.

    Aggregations without windows drop null values. If the key may have changed since the records
    were last partitioned, the aggregation reads them from a repartition topic, so that a single
    task has all records of a key.

    Arguments of all aggregations: `store` is the name or the options of the store; None generates a
    name. `key` and `value` are the serdes of its keys and values; None uses those of the group for
    keys and reduced values, `serdes.long` for counts and the setting ``default.value.serde`` for
    aggregates. `name` is the name of the node; None generates one. They raise `TopologyError` if a
    name is not legal or is taken.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> sales = builder.stream("sales", key=serdes.string, value=serdes.long).group_by_key()
        >>> sales
        <KGroupedStream of KSTREAM-SOURCE-0000000000 key=string value=long>
        >>> _ = sales.count(store="number")
        >>> _ = sales.reduce(lambda total, price: total + price, store="total")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("sales").send_many([("tea", 3), ("tea", 4)])
        ...     driver.store("number")["tea"], driver.store("total")["tea"]
        (2, 7)
    """

    __slots__ = ("_edge", "_name")

    def __init__(self, edge: Edge, name: str | None) -> None:
        self._edge = edge
        self._name = name

    def __repr__(self) -> str:
        return f"<KGroupedStream of {self._edge}>"

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[int] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, int]:
        """Count the records of each key."""
        # Kafka Streams uses up one number more for a store with options and no name.
        burn = isinstance(store, Materialized) or key is not None or value is not None
        return self._folded(Counting(), store, key, value or serdes.long, name, burn=burn)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        *,
        merger: Callable[[K, V, V], V] | None = None,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, V]:
        """Combine the values of each key with a function of two values; the first value is used
        unchanged.

        Args:
            reducer: called as ``reducer(old, value)``; None deletes the row.
            merger: called as ``merger(key, one, other)`` with the reducer's result of some values
                and its result of the values after them; returns the result of all of them. With it,
                values are reduced before they are written to a repartition topic, with the same
                results. To test it, create the driver with ``commit="manual"``: by default each
                record is committed individually, and no results are merged. The first value of each
                such result is used unchanged, too: reject values upstream, with `filter` or
                `map_values`, not with an error of the reducer.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> sent = builder.stream("sent", key=serdes.string, value=serdes.long)
            >>> by_city = sent.group_by(lambda key, _: key[:4], key=serdes.string, name="by-city")
            >>> sums = by_city.reduce(
            ...     lambda old, value: old + value,
            ...     merger=lambda key, one, other: one + other,
            ...     store="sums",
            ... )
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("sent").send_many([("Lyon-1", 3), ("Lyon-2", 4)])
            ...     dict(driver.store("sums").items())
            {'Lyon': 7}
        """
        fold = Reducing(reducer, merger=merger)
        return self._folded(fold, store, key, value or self._edge.value, name)

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        *,
        merger: Callable[[K, A, A], A] | None = None,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, A]:
        """Aggregate the values of each key.

        Args:
            initializer: returns the initial aggregate of a key.
            aggregator: called as ``aggregator(key, value, aggregate)``; None deletes the row.
            merger: called as ``merger(key, one, other)`` with the aggregate of some values and the
                aggregate of the values after them, each started by the initializer; returns the
                aggregate of all of them. With it, values are aggregated before they are written to
                a repartition topic, with the same results. To test it, create the driver with
                ``commit="manual"``; see `reduce`.

        Examples:
            >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
            >>> builder = StreamsBuilder()
            >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
            >>> by_letter = words.group_by(lambda _, word: word[0], key=serdes.string, name="by")
            >>> lists = by_letter.aggregate(
            ...     list,
            ...     lambda letter, word, words: [*words, word],
            ...     merger=lambda letter, one, other: one + other,
            ...     store="lists",
            ...     value=serdes.json,
            ... )
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("words").send_many([("1", "ant"), ("2", "bee"), ("3", "ape")])
            ...     dict(driver.store("lists").items())
            {'a': ['ant', 'ape'], 'b': ['bee']}
        """
        fold = Aggregating(initializer, aggregator, merger=merger)
        return self._folded(fold, store, key, value, name)

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | UnlimitedWindows | SlidingWindows,
        *,
        emit: Emit = "on_window_update",
        late: Late[K, V] | None = None,
    ) -> time_windowed.TimeWindowedKStream[K, V]: ...
    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        emit: Emit = "on_window_update",
        late: Late[K, V] | None = None,
    ) -> session_windowed.SessionWindowedKStream[K, V]: ...

    def windowed_by(
        self,
        windows: TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows,
        *,
        emit: Emit = "on_window_update",
        late: Late[K, V] | None = None,
    ) -> time_windowed.TimeWindowedKStream[K, V] | session_windowed.SessionWindowedKStream[K, V]:
        """Divide the stream into time windows, each of which is aggregated separately.

        Args:
            windows: the windows, and their grace period.
            emit: "on_window_update" forwards a result whenever it changes, "on_window_close" once,
                when the window is closed. Unlimited windows are never closed.
            late: called with the stream of late records, which came after all of their windows were
                closed; adds the nodes that process them. They have the group's serdes. Late records
                are always counted.

        Raises:
            TopologyError: the arguments cannot be combined.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import StreamsBuilder, TopologyTestDriver
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=serdes.string).group_by_key()
            >>> minutes = clicks.windowed_by(
            ...     TimeWindows(size=timedelta(minutes=1)),
            ...     emit="on_window_close",
            ...     late=lambda stream: stream.to("late"),
            ... )
            >>> minutes.count(store="clicks-per-minute").to_stream().to("out")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     for second in (10, 20, 70, 30):
            ...         driver.input("clicks").send("home", second, timestamp=second * 1000)
            ...     for record in driver.output("out").read_all():
            ...         print(record.key, record.value)
            ...     driver.output("late").as_dict()
            Windowed(key='home', window=Window(start_ms=0, end_ms=60000)) 2
            {'home': 30}
        """
        if isinstance(windows, SessionWindows):
            return session_windowed.SessionWindowedKStream(
                self._edge, self._name, windows, emit, late
            )
        if isinstance(windows, (TimeWindows, UnlimitedWindows, SlidingWindows)):
            return time_windowed.TimeWindowedKStream(self._edge, self._name, windows, emit, late)
        raise TopologyError(
            f"windowed_by takes windows such as TimeWindows, not {type(windows).__name__}"
        )

    def cogroup(self, aggregator: Callable[[K, V, A], A]) -> cogrouped.CogroupedKStream[K, A]:
        """Start a cogroup: an aggregation of several streams into a table, each with its own
        aggregator.

        Args:
            aggregator: called as ``aggregator(key, value, aggregate)`` with this stream's values;
                None deletes the row.

        Examples:
            >>> from headrace import StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> bought = builder.stream("bought", key=serdes.string).group_by_key()
            >>> returned = builder.stream("returned", key=serdes.string).group_by_key()
            >>> balance = bought.cogroup(lambda customer, price, total: total + price).cogroup(
            ...     returned, lambda customer, price, total: total - price
            ... )
            >>> balance.aggregate(lambda: 0, store="balance").to_stream().to("out")
        """
        return cogrouped.CogroupedKStream(((self, aggregator),))

    def _folded(
        self,
        fold: Fold,
        store: str | Materialized | None,
        key: AnySerde | None,
        value: AnySerde | None,
        name: str | None,
        *,
        burn: bool = False,
    ) -> ktable.KTable[K, Any]:
        options = materialized(store)
        key = key or self._edge.key

        def make(node: str, parent: str, store_name: str) -> tuple[Node, Store]:
            added = Store(options.spec(store_name), key, value)
            return Aggregate(node, (parent,), fold=fold, store=store_name), added

        edge, node = add_fold(
            self._edge, fold, make, options=options, group=self._name, name=name, burn=burn
        )
        return ktable.KTable(replace(edge, node=node, key=key, value=value))
