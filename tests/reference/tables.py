"""Tables: rows in dictionaries, and the changes that flow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from headrace.topology import serdes
from headrace.topology.dsl.suppressed import Suppressed
from headrace.topology.serdes import Serde
from headrace.topology.serdes.changed import ValueChange
from tests.reference import joins, streams
from tests.reference.engine import Engine, Headers, PerTask, ReceiveChange, Task, attempted
from tests.reference.functions import FailedError

Row = tuple[Any, int]
ABSENT: Row = (None, -1)


class Closing(Protocol):
    """Windows that stream time closes."""

    after: list[Callable[[Task], None]]
    """Called when a record has passed through the windows, whatever became of it."""

    def is_closed(self, task: Task, key: Any) -> bool:
        """Whether a window takes nothing more."""


class Table:
    """A table of the interpreter; what it forwards are the changes of its rows."""

    def __init__(
        self, engine: Engine, key: streams.Key, lies_by: frozenset[str] = frozenset()
    ) -> None:
        self.engine = engine
        self.key = key
        self.lies_by = lies_by
        self.followers: list[ReceiveChange] = []
        self.closing: Closing | None = None
        """What closes its windows, if its rows are windows."""
        self.origins: frozenset[int] = frozenset({id(self)})
        """The tables that its rows are computed from with no topic between."""

    def emit(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        """Hand a change to all that follow."""
        for follower in self.followers:
            follower(task, key, value, old, timestamp)

    def sends_old_values(self) -> bool:
        """Whether the changes say what was there before."""
        return True

    def readable(self) -> None:
        """Keep the rows from now on, as somebody reads them."""

    def get(self, task: Task, key: Any) -> Row:
        """The present row of a key."""
        raise NotImplementedError

    def filter(
        self,
        predicate: Callable[[Any, Any], object],
        *,
        store: str | None = None,
        key: streams.Key = None,
        **options: Serde[Any],
    ) -> Table:
        """See `KTable.filter`."""
        return Mapped(self, lambda k, v: v if predicate(k, v) else None, store, key)

    def map_values(
        self,
        mapper: Callable[[Any], Any],
        *,
        store: str | None = None,
        key: streams.Key = None,
        **options: Serde[Any],
    ) -> Table:
        """See `KTable.map_values`."""
        return Mapped(self, lambda k, v: mapper(v), store, key)

    def transform_values(
        self,
        supplier: Callable[[], Any],
        *,
        store: str | None = None,
        name: str,
        value: Serde[Any],
    ) -> Table:
        """See `KTable.transform_values`."""
        del name, value
        return Transformed(self, supplier().transform, store)

    def suppress(self, limit: Suppressed, *, name: str) -> Table:
        """See `KTable.suppress`."""
        del name
        return Final(self) if limit.limit_ms is None else Suppressed_(self, limit.limit_ms)

    def group_by(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any]],
        *,
        name: str,
        key: streams.Key = None,
        value: Serde[Any],
    ) -> GroupedTable:
        """See `KTable.group_by`."""
        del value
        return GroupedTable(self, mapper, key, f"test-{name}-repartition")

    def join(self, other: Table, joiner: Callable[[Any, Any], Any], **options: Any) -> Table:
        """See `KTable.join`."""
        return joins.joined(self, other, joiner, "inner", **options)

    def left_join(self, other: Table, joiner: Callable[[Any, Any], Any], **options: Any) -> Table:
        """See `KTable.left_join`."""
        return joins.joined(self, other, joiner, "left", **options)

    def outer_join(self, other: Table, joiner: Callable[[Any, Any], Any], **options: Any) -> Table:
        """See `KTable.outer_join`."""
        return joins.joined(self, other, joiner, "outer", **options)

    def to_stream(self) -> streams.Stream:
        """See `KTable.to_stream`."""
        stream = streams.Stream(self.engine, self.key, serdes.long, lies_by=self.lies_by)
        stream.origins = self.origins

        def receive(task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
            del old
            stream.emit(task, key, value, timestamp)

        self.followers.append(receive)
        return stream


class Stored(Table):
    """A table that keeps its rows."""

    def __init__(
        self,
        engine: Engine,
        key: streams.Key,
        store: str | None,
        lies_by: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(engine, key, lies_by)
        self.store = store
        self.rows: PerTask = PerTask(dict)
        if store is not None:
            engine.stores[store] = lambda task: self.rows[task]

    def get(self, task: Task, key: Any) -> Row:
        """The present row of a key."""
        self.engine.at(self, key, task)
        row: Row = self.rows[task].get(key, ABSENT)
        return row

    def put(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Change a row and hand the change on; nothing comes of nothing."""
        old = self.get(task, key)[0]
        if value is None and old is None:
            return
        if value is None:
            del self.rows[task][key]
        else:
            self.rows[task][key] = (value, timestamp)
        self.emit(task, key, value, old, timestamp)

    def put_if_changed(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """The same, unless the row has that value already."""
        if self.get(task, key)[0] != value:
            self.put(task, key, value, timestamp)


class Source(Stored):
    """The last value of each key of a stream."""

    def __init__(self, engine: Engine, key: streams.Key, store: str | None) -> None:
        super().__init__(engine, key, store)
        self._kept = store is not None

    def sends_old_values(self) -> bool:
        return self._kept

    def readable(self) -> None:
        self._kept = True
        self.engine.meet("a table that is read", self.lies_by)

    def upsert(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Take a record of the stream."""
        if key is None:
            return
        if self._kept:
            self.put_if_changed(task, key, value, timestamp)
        else:
            self.emit(task, key, value, None, timestamp)


class Versioned(Table):
    """A table that keeps its past; only joins read it here."""

    def __init__(self, engine: Engine, key: streams.Key) -> None:
        super().__init__(engine, key)
        self._versions: PerTask = PerTask(dict)

    def upsert(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Take a record of the stream; the last of one time counts."""
        if key is not None:
            self.engine.at(self, key, task)
            self._versions[task].setdefault(key, {})[timestamp] = value

    def as_of(self, task: Task, key: Any, timestamp: int) -> Any:
        """The value that was valid at a time."""
        self.engine.at(self, key, task)
        versions = self._versions[task].get(key, {})
        times = [time for time in versions if time <= timestamp]
        return versions[max(times)] if times else None


class Mapped(Table):
    """A table that is computed from another, row by row; with a store it keeps what it computed."""

    def __init__(
        self,
        parent: Table,
        function: Callable[[Any, Any], Any],
        store: str | None,
        key: streams.Key = None,
    ) -> None:
        super().__init__(parent.engine, key or parent.key, parent.lies_by)
        self.origins = parent.origins
        self.closing = parent.closing
        self._parent = parent
        self._function = function
        self._stored = None if store is None else Stored(parent.engine, parent.key, store)
        if self._stored is not None:
            self._stored.followers.append(self.emit)
        parent.followers.append(self._receive)

    def _of(self, key: Any, value: Any) -> Any:
        return None if value is None else attempted(self._function, key, value)

    def _receive(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        new = self._of(key, value)
        if self._stored is not None:
            self._stored.put_if_changed(task, key, new, timestamp)
            return
        before = self._of(key, old)
        if new is not None or before is not None or not self._parent.sends_old_values():
            self.emit(task, key, new, before, timestamp)

    def sends_old_values(self) -> bool:
        return self._stored is not None or self._parent.sends_old_values()

    def readable(self) -> None:
        if self._stored is None:
            self._parent.readable()

    def get(self, task: Task, key: Any) -> Row:
        if self._stored is not None:
            return self._stored.get(task, key)
        value, timestamp = self._parent.get(task, key)
        new = self._of(key, value)
        return ABSENT if new is None else (new, timestamp)


class Transformed(Table):
    """A table that a transformer computes; it is kept if somebody reads it."""

    def __init__(
        self, parent: Table, function: Callable[[Any, Any], Any], store: str | None
    ) -> None:
        super().__init__(parent.engine, parent.key, parent.lies_by)
        self.origins |= parent.origins
        self.closing = parent.closing
        self._function = function
        self._rows = Stored(parent.engine, parent.key, store)
        self._rows.followers.append(self.emit)
        self._kept = store is not None
        parent.followers.append(self._receive)

    def _receive(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        del old
        new = attempted(self._function, key, value)
        if self._kept:
            self._rows.put_if_changed(task, key, new, timestamp)
        else:
            self.emit(task, key, new, None, timestamp)

    def sends_old_values(self) -> bool:
        return self._kept

    def readable(self) -> None:
        self._kept = True

    def get(self, task: Task, key: Any) -> Row:
        return self._rows.get(task, key)


def fold(stream: streams.Stream, store: str, function: Callable[[Any, Any, Any], Any]) -> Stored:
    """A table whose row is ``function(key, value, old)`` of each record of its key.

    The timestamp of a row is the largest one since it is there.
    """
    table = Stored(stream.engine, stream.key, store, stream.lies_by)
    fold_into(table, stream, function)
    return table


def fold_into(
    table: Stored, stream: streams.Stream, function: Callable[[Any, Any, Any], Any]
) -> None:
    """Let a stream change the rows of a table that others may change too."""
    table.origins |= stream.origins

    def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
        if key is None or value is None:
            return
        old, since = table.get(task, key)
        try:
            new = function(key, value, old)
        except FailedError:
            return
        table.put(task, key, new, max(timestamp, since))

    stream.followers.append(receive)


class GroupedTable:
    """See `KGroupedTable`: what groups lose and gain goes through a topic."""

    def __init__(
        self,
        table: Table,
        mapper: Callable[[Any, Any], tuple[Any, Any]],
        key: streams.Key,
        topic: str,
    ) -> None:
        table.readable()
        self._engine, self._mapper, self._key, self._topic = table.engine, mapper, key, topic
        table.followers.append(self._receive)

    def _receive(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        del task
        none = (None, None)
        lost = none if old is None else attempted(self._mapper, key, old, instead=none)
        gained = none if value is None else attempted(self._mapper, key, value, instead=none)
        if None not in lost and None not in gained and lost[0] == gained[0]:
            self._send(gained[0], ValueChange(gained[1], lost[1]), timestamp)
            return
        if None not in lost:
            self._send(lost[0], ValueChange(None, lost[1]), timestamp)
        if None not in gained:
            self._send(gained[0], ValueChange(gained[1], None), timestamp)

    def _send(self, key: Any, change: ValueChange, timestamp: int) -> None:
        self._engine.write(self._topic, self._key, key, change, timestamp)

    def count(self, *, store: str, value: Serde[Any]) -> Table:
        """See `KGroupedTable.count`."""
        return self.aggregate(
            lambda: 0, lambda k, v, n: n + 1, lambda k, v, n: n - 1, store=store, value=value
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        *,
        store: str,
        value: Serde[Any],
    ) -> Table:
        """See `KGroupedTable.aggregate`."""
        del value
        table = Stored(self._engine, self._key, store, self._engine.lies_by(self._key))

        def receive(task: Task, key: Any, change: ValueChange, timestamp: int) -> None:
            total, since = table.get(task, key)
            try:
                if total is not None and change.old is not None:
                    total = subtractor(key, change.old, total)
                if change.new is not None:
                    total = adder(key, change.new, initializer() if total is None else total)
            except FailedError:
                return
            table.put_if_changed(task, key, total, max(timestamp, since))

        self._engine.inputs[self._topic] = receive
        return table


class Held(NamedTuple):
    """A change that is held back, since when, and what was forwarded before it."""

    since: int
    prior: Any
    value: Any
    timestamp: int
    headers: Headers


class Suppressed_(Table):  # noqa: N801 - the spec has the name
    """A table whose changes wait; the last one of each row goes on when its time has come."""

    def __init__(self, parent: Table, wait_ms: int) -> None:
        super().__init__(parent.engine, parent.key, parent.lies_by)
        parent.readable()
        self.origins = parent.origins
        self._parent = parent
        self._wait_ms = wait_ms
        self._held: PerTask = PerTask(dict)
        self._times: PerTask = PerTask(lambda: [-1])
        self._encode = (parent.key or parent.engine.default_key).serialize
        parent.followers.append(self._receive)

    def get(self, task: Task, key: Any) -> Row:
        """The row as those below have seen it; of one that waits the time is that of the change."""
        held: Held | None = self._held[task].get(key)
        if held is None:
            return self._parent.get(task, key)
        return held.prior, -1 if held.prior is None else held.timestamp

    def _receive(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        held: dict[Any, Held] = self._held[task]
        times = self._times[task]
        times[0] = max(times[0], timestamp)
        before = held.get(key)
        since, prior = (timestamp, old) if before is None else (before.since, before.prior)
        if value is None and prior is None:
            held.pop(key, None)
        else:
            held[key] = Held(since, prior, value, timestamp, self.engine.headers)
        due = [k for k, h in held.items() if h.since + self._wait_ms <= times[0]]
        for each in sorted(due, key=lambda k: (held[k].since, self._encode(k))):
            one = held.pop(each)
            with self.engine.under(one.headers):
                self.emit(task, each, one.value, one.prior, one.timestamp)


class Final(Table):
    """The last change of each window, once the windows above have closed it."""

    def __init__(self, parent: Table) -> None:
        super().__init__(parent.engine, parent.key, parent.lies_by)
        assert parent.closing is not None
        parent.readable()
        self.origins = parent.origins
        self._windows = parent.closing
        self._held: PerTask = PerTask(dict)
        self._encode = (parent.key or parent.engine.default_key).serialize
        parent.followers.append(self._receive)
        self._windows.after.append(self._close)

    def _receive(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        del old
        if value is None:
            self._held[task].pop(key, None)
        else:
            self._held[task][key] = value, timestamp, self.engine.headers

    def _close(self, task: Task) -> None:
        held = self._held[task]
        due = [key for key in held if self._windows.is_closed(task, key)]
        for key in sorted(due, key=lambda k: (k.window.end_ms, self._encode(k.key), k.window)):
            value, timestamp, headers = held.pop(key)
            with self.engine.under(headers):
                self.emit(task, key, value, None, timestamp)
