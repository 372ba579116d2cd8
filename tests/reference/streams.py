"""Streams, read one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.topology.graph.materialized import Materialized
from headrace.topology.serdes import Serde
from headrace.topology.windows import SessionWindows
from tests.reference import fewer, joins
from tests.reference.engine import Engine, Partial, Receive, Task, attempted
from tests.reference.tables import Source, Stored, Table, Versioned, fold, fold_into
from tests.reference.windows import Aligned, Late, Sessions

Joiner = Callable[[Any, Any], Any]
Key = Serde[Any] | None
"""The serde of keys; None where nobody has named one."""
Merger = Callable[[Any, Any, Any], Any] | None
ANYWHERE: frozenset[str] = frozenset()
"""Where records lie that have new keys."""


class Builder:
    """What `StreamsBuilder` is to the topology under test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def stream(self, topic: str, *, key: Key, value: Serde[Any], name: str) -> Stream:
        """Read a topic."""
        lies_by = self.engine.lies_by(key)
        stream = Stream(self.engine, key, value, node=name, lies_by=lies_by)
        self.engine.inputs[topic] = stream.emit
        return stream

    def global_table(self, topic: str, *, store: str, **serdes: Any) -> Source:
        """Read a topic in every task; its rows do not change while streams are read."""
        del serdes
        table = Source(self.engine, None, store)
        del self.engine.stores[store]

        def upsert(_: Task, key: Any, value: Any, timestamp: int) -> None:
            for task in range(self.engine.partitions):
                table.rows[task][key] = (value, timestamp)

        self.engine.inputs[topic] = upsert
        return table


class Stream:
    """A stream of the interpreter; each method is the DSL's."""

    def __init__(
        self,
        engine: Engine,
        key: Key,
        value: Serde[Any],
        *,
        rekeyed: bool = False,
        node: str | None = None,
        lies_by: frozenset[str] = ANYWHERE,
    ) -> None:
        self.engine = engine
        self.key = key
        self.value = value
        self.rekeyed = rekeyed
        self.node = node
        self.lies_by = lies_by
        self.for_joins: list[tuple[Key, bool, Stream]] = []
        """The topics that joins have put behind it: their keys' serdes, and whether named."""
        self.followers: list[Receive] = []
        self.above: list[Stream] = []
        """The streams with the same keys that it comes from."""
        self.takes_keyless = True
        """Whether the topic that it is read from takes records without a key."""
        self.origins: frozenset[int] = frozenset()
        """The tables that its records come from with no topic between."""

    def keep_keyless(self) -> None:
        """Let records without a key come this far, as they have results here."""
        self.takes_keyless = True
        for stream in self.above:
            stream.keep_keyless()

    def emit(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Hand a record to all that follow."""
        for follower in self.followers:
            follower(task, key, value, timestamp)

    def _then(self, *, node: str | None = None) -> Stream:
        lies_by, rekeyed = self.lies_by, self.rekeyed
        result = Stream(
            self.engine, self.key, self.value, rekeyed=rekeyed, node=node, lies_by=lies_by
        )
        result.origins = self.origins
        return result

    def _flat(
        self,
        function: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        name: str | None,
        *,
        rekeys: bool = False,
    ) -> Stream:
        result = self._then(node=name)
        if rekeys:
            result.key, result.rekeyed, result.lies_by = None, True, ANYWHERE
        else:
            result.above = [self]

        def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
            for new_key, new_value in attempted(lambda: list(function(key, value)), instead=()):
                result.emit(task, new_key, new_value, timestamp)

        self.followers.append(receive)
        return result

    def process_values(self, supplier: Any, *, stores: Any, name: str) -> Stream:
        """See `KStream.process_values`; the one processor here counts its keys (see programs)."""
        del supplier
        result = self._then(node=name)
        result.above = [self]
        counted = Stored(self.engine, self.key, stores[0].name)
        if len(self.lies_by) > 1:  # a processor may have two rows of a key
            del self.engine.stores[stores[0].name]

        def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
            if key is not None:
                count = (counted.rows[task].get(key, (0, 0))[0]) + 1
                counted.rows[task][key] = (count, timestamp)
                result.emit(task, key, count, timestamp)

        self.followers.append(receive)
        return result

    def filter(self, predicate: Callable[[Any, Any], object], *, name: str) -> Stream:
        """See `KStream.filter`."""
        return self._flat(lambda k, v: [(k, v)] if predicate(k, v) else [], name)

    def filter_not(self, predicate: Callable[[Any, Any], object], *, name: str) -> Stream:
        """See `KStream.filter_not`."""
        return self._flat(lambda k, v: [] if predicate(k, v) else [(k, v)], name)

    def map(self, mapper: Callable[[Any, Any], tuple[Any, Any]], *, name: str) -> Stream:
        """See `KStream.map`."""
        return self._flat(lambda k, v: [mapper(k, v)], name, rekeys=True)

    def map_values(self, mapper: Callable[[Any], Any], *, name: str) -> Stream:
        """See `KStream.map_values`."""
        return self._flat(lambda k, v: [(k, mapper(v))], name)

    def flat_map_values(self, mapper: Callable[[Any], Iterable[Any]], *, name: str) -> Stream:
        """See `KStream.flat_map_values`."""
        return self._flat(lambda k, v: [(k, each) for each in mapper(v)], name)

    def select_key(self, mapper: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """See `KStream.select_key`."""
        return self._flat(lambda k, v: [(mapper(k, v), v)], name, rekeys=True)

    def merge(self, other: Stream, *, name: str) -> Stream:
        """See `KStream.merge`."""
        result = self._then(node=name)
        result.rekeyed = self.rekeyed or other.rekeyed
        result.key = self.key if self.key == other.key else None
        result.lies_by = self.lies_by | other.lies_by
        result.origins = self.origins | other.origins
        result.above = [self, other]
        self.followers.append(result.emit)
        if other is not self:
            other.followers.append(result.emit)
        return result

    def deduplicate(self, **options: Any) -> Stream:
        """See `KStream.deduplicate`."""
        return fewer.deduplicated(self, **options)

    def sample(self, fraction: float, *, by: str, name: str) -> Stream:
        """See `KStream.sample`."""
        return fewer.sampled(self, fraction, by=by, name=name)

    def split(self, *, name: str) -> Split:
        """See `KStream.split`."""
        return Split(self, name)

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
        name, key = options.get("name"), options.get("key")
        if "key_mapper" in options:
            return joins.join_global(self, other, joiner, left=kind == "left", **options)
        if isinstance(other, Table):
            return joins.join_table(self, other, joiner, left=kind == "left", name=name, key=key)
        left, right = self, other
        own, others = key or left.key, key or right.key
        if left.rekeyed:
            left = left.for_join(name and f"{name}-left", own or right.key)
        if right.rekeyed:
            right = right.for_join(name and f"{name}-right", others or self.key)
        if kind != "inner":
            left.keep_keyless()
        if kind == "outer":
            right.keep_keyless()
        drops_late = options.get("late_match") == "drop"
        join = joins.StreamJoin(left, right, joiner, windows, kind, drops_late=drops_late)
        join.hand_on_late(True, own or left.key, options.get("late"))
        join.hand_on_late(False, others or right.key, options.get("other_late"))
        join.result.key = own or others
        return join.result

    def for_join(self, name: str | None, key: Key) -> Stream:
        """The topic that a join reads; one without a name reads that of another, if it can."""
        again = [stream for its_key, _, stream in self.for_joins if its_key == key]
        if name is None and again:
            return again[-1]
        number = sum(not named for _, named, _ in self.for_joins) + 1
        unnamed = self.node if number == 1 else f"{self.node}-{number}"
        stream = self.repartition(name=name or str(unnamed), key=key)
        self.for_joins.append((key, name is not None, stream))
        return stream

    def repartition(
        self,
        *,
        name: str,
        key: Key = None,
        value: Serde[Any] | None = None,
    ) -> Stream:
        """See `KStream.repartition`; those without a key are left out unless a join wants them."""
        del value
        topic = f"test-{name}-repartition"
        serde = key or self.key
        lies_by = self.engine.lies_by(serde)
        result = Stream(self.engine, serde, self.value, lies_by=lies_by)
        result.takes_keyless = False

        def send(task: Task, own: Any, value: Any, timestamp: int) -> None:
            if own is not None or result.takes_keyless:
                self.engine.write(topic, serde, own, value, timestamp)

        self.followers.append(send)
        self.engine.inputs[topic] = result.emit
        return result

    def to(self, topic: str, *, key: Key = None, value: Serde[Any] | None = None) -> None:
        """See `KStream.to`."""
        del value
        serde = key or self.key

        def send(task: Task, own: Any, value: Any, timestamp: int) -> None:
            self.engine.write(topic, serde, own, value, timestamp)

        self.followers.append(send)

    def to_table(
        self,
        *,
        store: Any = None,
        name: str,
        key: Key = None,
        value: Serde[Any] | None = None,
    ) -> Table:
        """See `KStream.to_table`."""
        del value
        key = key or self.key
        stream = self.repartition(name=name, key=key) if self.rekeyed else self
        versioned = isinstance(store, Materialized)
        source = Versioned(self.engine, key) if versioned else Source(self.engine, key, store)
        source.lies_by = stream.lies_by
        source.origins |= stream.origins
        if store is not None:
            self.engine.meet(f"table {name}", stream.lies_by)
        stream.followers.append(source.upsert)
        return source

    def group_by_key(
        self, *, name: str, key: Key = None, value: Serde[Any] | None = None
    ) -> Grouped:
        """See `KStream.group_by_key`."""
        del value
        return Grouped(self, name, key or self.key)

    def group_by(
        self,
        selector: Callable[[Any, Any], Any],
        *,
        key: Key = None,
        name: str,
        value: Serde[Any] | None = None,
    ) -> Grouped:
        """See `KStream.group_by`."""
        del value
        return Grouped(self.select_key(selector), name, key)


class Split:
    """See `BranchedKStream`."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._stream, self._name = stream, name
        self._branches: list[tuple[Callable[[Any, Any], object], Stream]] = []
        stream.followers.append(self._receive)

    def branch(self, predicate: Callable[[Any, Any], object], *, name: str) -> Split:
        """See `BranchedKStream.branch`."""
        branch = self._stream._then(node=self._name + name)
        branch.above = [self._stream]
        self._branches.append((predicate, branch))
        return self

    def default_branch(self, *, name: str) -> dict[str, Stream]:
        """See `BranchedKStream.default_branch`."""
        return self.branch(lambda k, v: True, name=name).no_default_branch()

    def no_default_branch(self) -> dict[str, Stream]:
        """See `BranchedKStream.no_default_branch`."""
        return {str(stream.node): stream for _, stream in self._branches}

    def _receive(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        def chosen() -> Stream | None:
            return next((to for fits, to in self._branches if fits(key, value)), None)

        stream = attempted(chosen)
        if stream is not None:
            stream.emit(task, key, value, timestamp)


class Grouped:
    """See `KGroupedStream`."""

    def __init__(self, stream: Stream, name: str, key: Key) -> None:
        self._stream = stream
        self._name = name
        self.key = key

    @property
    def is_free(self) -> bool:
        """Whether nobody has named a serde for keys that are new."""
        return self._stream.rekeyed and self.key is None

    def partitioned(self, others: Key = None) -> Stream:
        """The stream as the fold reads it."""
        stream, key = self._stream, self.key or others
        if stream.rekeyed:
            stream = stream.repartition(name=self._name, key=key)
        stream.engine.meet(f"fold {self._name}", stream.lies_by)
        return stream

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
        return self._folded(store, lambda key, value, old: (old or 0) + 1)

    def reduce(
        self, reducer: Callable[[Any, Any], Any], *, store: str, merger: Merger = None
    ) -> Table:
        """See `KGroupedStream.reduce`."""
        return self._folded(
            store,
            lambda key, value, old: value if old is None else reducer(old, value),
            merger,
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        *,
        store: str,
        value: Serde[Any],
        merger: Merger = None,
    ) -> Table:
        """See `KGroupedStream.aggregate`."""
        del value
        return self._folded(
            store,
            lambda key, new, old: aggregator(key, new, initializer() if old is None else old),
            merger,
        )

    def _folded(
        self, store: str, function: Callable[[Any, Any, Any], Any], merger: Merger = None
    ) -> Table:
        def step(key: Any, value: Any, old: Any) -> Any:
            if not isinstance(value, Partial):
                return function(key, value, old)
            assert merger is not None
            return value.result if old is None else merger(key, old, value.result)

        table = fold(self.partitioned(), store, step)
        table.key = self.key
        return table


class Cogrouped:
    """See `CogroupedKStream`."""

    def __init__(self, groups: list[tuple[Grouped, Callable[[Any, Any, Any], Any]]]) -> None:
        self._groups = groups

    def cogroup(self, other: Grouped, aggregator: Callable[[Any, Any, Any], Any]) -> Cogrouped:
        """See `CogroupedKStream.cogroup`."""
        return Cogrouped([*self._groups, (other, aggregator)])

    def aggregate(self, initializer: Callable[[], Any], *, store: str, value: Serde[Any]) -> Table:
        """See `CogroupedKStream.aggregate`."""
        del value
        named = [grouped.key for grouped, _ in self._groups if not grouped.is_free]
        key = named[0] if named and all(one == named[0] for one in named) else None
        streams = [(grouped.partitioned(key), aggregator) for grouped, aggregator in self._groups]
        table = Stored(streams[0][0].engine, key, store)
        table.lies_by = frozenset().union(*(stream.lies_by for stream, _ in streams))
        table.engine.meet(f"cogroup {store}", table.lies_by)
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
            ends = (self._emit, self._late, self._grouped.key)
            return Sessions(stream, store, self._windows, *functions, *ends)

        def fold(key: Any, new: Any, old: Any) -> Any:
            return aggregator(key, new, initializer() if old is None else old)

        ends = (self._emit, self._late, self._grouped.key)
        return Aligned(stream, store, self._windows, fold, *ends)
