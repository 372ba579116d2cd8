"""Streams, read one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.reference import joins
from tests.reference.engine import Engine, Receive, Task
from tests.reference.tables import Source, Stored, Table, fold, fold_into
from tests.reference.windows import Aligned, Late, Sessions
from topology.serdes import Serde
from topology.windows import SessionWindows

Joiner = Callable[[Any, Any], Any]


class Builder:
    """What `StreamsBuilder` is to the topology under test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def stream(self, topic: str, *, key: Serde[Any], value: Serde[Any]) -> Stream:
        """Read a topic."""
        stream = Stream(self.engine, key, value)
        self.engine.inputs[topic] = stream.emit
        return stream

    def table(
        self, topic: str, *, key: Serde[Any], value: Serde[Any], store: str | None = None
    ) -> Table:
        """Read a topic as a table."""
        source = Source(self.engine, key, store)
        self.engine.inputs[topic] = source.upsert
        return source


class Stream:
    """A stream of the interpreter; each method is the DSL's."""

    def __init__(
        self, engine: Engine, key: Serde[Any], value: Serde[Any], *, rekeyed: bool = False
    ) -> None:
        self.engine = engine
        self.key = key
        self.value = value
        self.rekeyed = rekeyed
        self.followers: list[Receive] = []
        self.above: list[Stream] = []
        """The streams with the same keys that it comes from."""
        self.takes_keyless = True
        """Whether the topic that it is read from takes records without a key."""

    def keep_keyless(self) -> None:
        """Let records without a key come this far, as they have results here."""
        self.takes_keyless = True
        for stream in self.above:
            stream.keep_keyless()

    def emit(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Hand a record to all that follow."""
        for follower in self.followers:
            follower(task, key, value, timestamp)

    def _then(self, *, rekeyed: bool | None = None) -> Stream:
        rekeyed = self.rekeyed if rekeyed is None else rekeyed
        return Stream(self.engine, self.key, self.value, rekeyed=rekeyed)

    def _flat(
        self, function: Callable[[Any, Any], Iterable[tuple[Any, Any]]], *, rekeys: bool = False
    ) -> Stream:
        result = self._then(rekeyed=self.rekeyed or rekeys)
        if not rekeys:
            result.above = [self]

        def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
            for new_key, new_value in function(key, value):
                result.emit(task, new_key, new_value, timestamp)

        self.followers.append(receive)
        return result

    def process_values(self, supplier: Any, *, stores: Any, name: str) -> Stream:
        """See `KStream.process_values`; the one processor here counts its keys (see programs)."""
        del supplier, name
        result = self._then()
        result.above = [self]
        counted = Stored(self.engine, self.key, stores[0].name)

        def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
            if key is not None:
                count = (counted.get(task, key)[0] or 0) + 1
                counted.rows[task][key] = (count, timestamp)
                result.emit(task, key, count, timestamp)

        self.followers.append(receive)
        return result

    def filter(self, predicate: Callable[[Any, Any], object]) -> Stream:
        """See `KStream.filter`."""
        return self._flat(lambda k, v: [(k, v)] if predicate(k, v) else [])

    def filter_not(self, predicate: Callable[[Any, Any], object]) -> Stream:
        """See `KStream.filter_not`."""
        return self._flat(lambda k, v: [] if predicate(k, v) else [(k, v)])

    def map(self, mapper: Callable[[Any, Any], tuple[Any, Any]]) -> Stream:
        """See `KStream.map`."""
        return self._flat(lambda k, v: [mapper(k, v)], rekeys=True)

    def map_values(self, mapper: Callable[[Any], Any]) -> Stream:
        """See `KStream.map_values`."""
        return self._flat(lambda k, v: [(k, mapper(v))])

    def flat_map(self, mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]]) -> Stream:
        """See `KStream.flat_map`."""
        return self._flat(mapper, rekeys=True)

    def flat_map_values(self, mapper: Callable[[Any], Iterable[Any]]) -> Stream:
        """See `KStream.flat_map_values`."""
        return self._flat(lambda k, v: [(k, each) for each in mapper(v)])

    def select_key(self, mapper: Callable[[Any, Any], Any]) -> Stream:
        """See `KStream.select_key`."""
        return self._flat(lambda k, v: [(mapper(k, v), v)], rekeys=True)

    def merge(self, other: Stream) -> Stream:
        """See `KStream.merge`."""
        result = self._then(rekeyed=self.rekeyed or other.rekeyed)
        result.above = [self, other]
        self.followers.append(result.emit)
        if other is not self:
            other.followers.append(result.emit)
        return result

    def join(self, other: Any, joiner: Joiner, windows: Any = None, **options: Any) -> Stream:
        """See `KStream.join`."""
        return self._joined(other, joiner, windows, "inner", options)

    def left_join(self, other: Any, joiner: Joiner, windows: Any = None, **options: Any) -> Stream:
        """See `KStream.left_join`."""
        return self._joined(other, joiner, windows, "left", options)

    def outer_join(self, other: Any, joiner: Joiner, windows: Any, **options: Any) -> Stream:
        """See `KStream.outer_join`."""
        return self._joined(other, joiner, windows, "outer", options)

    def _joined(
        self, other: Any, joiner: Joiner, windows: Any, kind: joins.Kind, options: dict[str, Any]
    ) -> Stream:
        name = options["name"]
        if isinstance(other, Table):
            return joins.join_table(self, other, joiner, left=kind == "left", name=name)
        left, right = self, other
        if left.rekeyed:
            left = left.repartition(name=f"{name}-left")
        if right.rekeyed:
            right = right.repartition(name=f"{name}-right")
        if kind != "inner":
            left.keep_keyless()
        if kind == "outer":
            right.keep_keyless()
        drops_late = options.get("late_match") == "drop"
        join = joins.StreamJoin(left, right, joiner, windows, kind, drops_late=drops_late)
        return join.result

    def repartition(
        self,
        *,
        name: str,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
    ) -> Stream:
        """See `KStream.repartition`; those without a key are left out unless a join wants them."""
        del value
        topic = f"test-{name}-repartition"
        result = self._then(rekeyed=False)
        result.takes_keyless = False
        serde = key or self.key

        def send(task: Task, own: Any, value: Any, timestamp: int) -> None:
            if own is not None or result.takes_keyless:
                self.engine.write(topic, serde, own, value, timestamp)

        self.followers.append(send)
        self.engine.inputs[topic] = result.emit
        return result

    def to(
        self, topic: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None
    ) -> None:
        """See `KStream.to`."""
        del value
        serde = key or self.key

        def send(task: Task, own: Any, value: Any, timestamp: int) -> None:
            self.engine.write(topic, serde, own, value, timestamp)

        self.followers.append(send)

    def to_table(
        self,
        *,
        store: str | None = None,
        name: str,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
    ) -> Table:
        """See `KStream.to_table`."""
        del key, value
        stream = self.repartition(name=name) if self.rekeyed else self
        source = Source(self.engine, self.key, store)
        stream.followers.append(source.upsert)
        return source

    def group_by_key(
        self, *, name: str, key: Serde[Any] | None = None, value: Serde[Any] | None = None
    ) -> Grouped:
        """See `KStream.group_by_key`."""
        del key, value
        return Grouped(self, name)

    def group_by(
        self,
        selector: Callable[[Any, Any], Any],
        *,
        key: Serde[Any],
        name: str,
        value: Serde[Any] | None = None,
    ) -> Grouped:
        """See `KStream.group_by`."""
        del value
        stream = self.select_key(selector)
        stream.key = key
        return Grouped(stream, name)


class Grouped:
    """See `KGroupedStream`."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._stream = stream
        self._name = name

    def partitioned(self) -> Stream:
        """The stream as the fold reads it."""
        stream = self._stream
        return stream.repartition(name=self._name) if stream.rekeyed else stream

    def cogroup(self, aggregator: Callable[[Any, Any, Any], Any]) -> Cogrouped:
        """See `KGroupedStream.cogroup`."""
        return Cogrouped([(self, aggregator)])

    def windowed_by(
        self, windows: Any, *, emit: str = "on_window_update", late: Late | None = None
    ) -> WindowedStream:
        """See `KGroupedStream.windowed_by`."""
        return WindowedStream(self, windows, emit, late)

    def count(self, *, store: str, value: Serde[Any] | None = None) -> Table:
        """See `KGroupedStream.count`."""
        del value
        return fold(self.partitioned(), store, lambda key, value, old: (old or 0) + 1)

    def reduce(self, reducer: Callable[[Any, Any], Any], *, store: str) -> Table:
        """See `KGroupedStream.reduce`."""
        return fold(
            self.partitioned(),
            store,
            lambda key, value, old: value if old is None else reducer(old, value),
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        *,
        store: str,
        value: Serde[Any],
    ) -> Table:
        """See `KGroupedStream.aggregate`."""
        del value
        return fold(
            self.partitioned(),
            store,
            lambda key, new, old: aggregator(key, new, initializer() if old is None else old),
        )


class Cogrouped:
    """See `CogroupedKStream`."""

    def __init__(self, groups: list[tuple[Grouped, Callable[[Any, Any, Any], Any]]]) -> None:
        self._groups = groups

    def cogroup(self, other: Grouped, aggregator: Callable[[Any, Any, Any], Any]) -> Cogrouped:
        """See `CogroupedKStream.cogroup`."""
        return Cogrouped([*self._groups, (other, aggregator)])

    def aggregate(
        self, initializer: Callable[[], Any], *, store: str, key: Serde[Any], value: Serde[Any]
    ) -> Table:
        """See `CogroupedKStream.aggregate`."""
        del key, value
        streams = [(grouped.partitioned(), aggregator) for grouped, aggregator in self._groups]
        table = Stored(streams[0][0].engine, streams[0][0].key, store)
        for stream, aggregator in streams:
            fold_into(table, stream, _started(aggregator, initializer))
        return table


def _started(
    aggregator: Callable[[Any, Any, Any], Any], initializer: Callable[[], Any]
) -> Callable[[Any, Any, Any], Any]:
    return lambda key, value, old: aggregator(key, value, initializer() if old is None else old)


class WindowedStream:
    """See `TimeWindowedKStream` and `SessionWindowedKStream`."""

    def __init__(self, grouped: Grouped, windows: Any, emit: str, late: Late | None) -> None:
        self._grouped = grouped
        self._windows = windows
        self._emit = emit
        self._late = late

    def count(self, *, store: str, value: Serde[Any]) -> Table:
        """See `TimeWindowedKStream.count`."""
        return self.aggregate(
            lambda: 0,
            lambda key, new, old: old + 1,
            merger=lambda key, one, other: one + other,
            store=store,
            value=value,
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any] | None = None,
        *,
        store: str,
        value: Serde[Any],
    ) -> Table:
        """See `TimeWindowedKStream.aggregate` and `SessionWindowedKStream.aggregate`."""
        del value
        stream = self._grouped.partitioned()
        if isinstance(self._windows, SessionWindows):
            assert merger is not None
            functions = (initializer, aggregator, merger)
            return Sessions(stream, store, self._windows, *functions, self._emit, self._late)

        def fold(key: Any, new: Any, old: Any) -> Any:
            return aggregator(key, new, initializer() if old is None else old)

        return Aligned(stream, store, self._windows, fold, self._emit, self._late)
