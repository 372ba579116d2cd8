"""Joins of tables and of streams with tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.topology.windows import JoinWindows
from tests.reference import streams
from tests.reference.engine import PerTask, Task, attempted
from tests.reference.tables import ABSENT, Row, Stored, Table, Versioned

Kind = Literal["inner", "left", "outer"]
Joiner = Callable[[Any, Any], Any]
FAILED = object()
"""In the place of what a function that fails would have returned."""


class Joined(Table):
    """The join of two tables by their keys; with a store it keeps what it computed.

    Where both come from one table with no topic between, a change of one row changes both sides: it
    keeps what it computed then too, so that only what differs goes on.
    """

    def __init__(
        self,
        left: Table,
        right: Table,
        joiner: Joiner,
        kind: Kind,
        store: str | None,
        key: streams.Key,
    ) -> None:
        super().__init__(left.engine, key or left.key, left.lies_by | right.lies_by)
        left.engine.meet("a join of tables", self.lies_by)
        self._left, self._right, self._joiner, self._kind = left, right, joiner, kind
        left.readable()
        right.readable()
        self.origins = left.origins | right.origins
        keeps = store is not None or left.origins & right.origins
        self._stored = Stored(left.engine, left.key, store) if keeps else None
        if self._stored is not None:
            self._stored.followers.append(self.emit)
        left.followers.append(self._from_left)
        right.followers.append(self._from_right)

    def _of(self, left: Any, right: Any) -> Any:
        has_both = left is not None and right is not None
        has_enough = {
            "inner": has_both,
            "left": left is not None,
            "outer": left is not None or right is not None,
        }
        return attempted(self._joiner, left, right) if has_enough[self._kind] else None

    def _from_left(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        other, since = self._right.get(task, key)
        self._change(task, key, self._of(value, other), self._of(old, other), timestamp, since)

    def _from_right(self, task: Task, key: Any, value: Any, old: Any, timestamp: int) -> None:
        other, since = self._left.get(task, key)
        self._change(task, key, self._of(other, value), self._of(other, old), timestamp, since)

    def _change(
        self, task: Task, key: Any, value: Any, old: Any, timestamp: int, since: int
    ) -> None:
        timestamp = max(timestamp, since)
        if self._stored is not None:
            self._stored.put_if_changed(task, key, value, timestamp)
        elif value is not None or old is not None:
            self.emit(task, key, value, old, timestamp)

    def get(self, task: Task, key: Any) -> Row:
        """The present row of a key."""
        if self._stored is not None:
            return self._stored.get(task, key)
        left, left_since = self._left.get(task, key)
        right, right_since = self._right.get(task, key)
        value = self._of(left, right)
        return ABSENT if value is None else (value, max(left_since, right_since))


def joined(
    left: Table,
    right: Table,
    joiner: Joiner,
    kind: Kind,
    *,
    foreign_key: Callable[[Any], Any] | None = None,
    store: str | None = None,
    key: streams.Key = None,
    name: str = "",
    value: Any = None,
) -> Table:
    """The join of two tables, by their keys or by one that the left rows name."""
    del value
    if foreign_key is None:
        return Joined(left, right, joiner, kind, store, key)
    assert store is not None
    place = name.removeprefix("f")
    return JoinedByForeignKey(left, right, joiner, kind, foreign_key, f"last-{place}")


class JoinedByForeignKey(Table):
    """What a join by a foreign key comes to in the end; nothing is said of the way there."""

    def __init__(
        self,
        left: Table,
        right: Table,
        joiner: Joiner,
        kind: Kind,
        foreign_key: Callable[[Any], Any],
        topic: str,
    ) -> None:
        engine = left.engine
        super().__init__(engine, left.key, left.lies_by)
        # The questions lie by the key that the right table has now.
        engine.meet("a foreign-key join", right.lies_by, engine.lies_by(right.key))
        left.readable()
        right.readable()
        self._joiner, self._kind, self._foreign_key = joiner, kind, foreign_key
        self._left: dict[Any, Any] = {}
        self._right: dict[Any, Any] = {}
        left.followers.append(lambda task, key, value, *_: self._left.update({key: value}))
        right.followers.append(lambda task, key, value, *_: self._right.update({key: value}))
        engine.finals[topic] = self._rows

    def _rows(self) -> dict[Any, Any]:
        rows = {}
        for key, value in self._left.items():
            wanted = None if value is None else attempted(self._foreign_key, value, instead=FAILED)
            if wanted is FAILED:
                continue
            other = None if wanted is None else self._right.get(wanted)
            if other is not None or (self._kind == "left" and value is not None):
                rows[key] = attempted(self._joiner, value, other)
        return rows


def join_global(
    stream: streams.Stream,
    table: Table,
    joiner: Joiner,
    *,
    left: bool,
    key_mapper: Callable[[Any, Any], Any],
    name: str,
) -> streams.Stream:
    """Look up a key that each record tells in a table that every task has."""
    result = stream._then(node=name)
    result.above = [stream]

    def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
        wanted = attempted(key_mapper, key, value, instead=FAILED)
        if wanted is FAILED:
            return
        other = None if wanted is None else table.rows[task].get(wanted, (None, 0))[0]  # type: ignore[attr-defined]
        if value is not None and (other is not None or left):
            made = attempted(joiner, value, other, instead=FAILED)
            if made is not FAILED:
                result.emit(task, key, made, timestamp)

    stream.followers.append(receive)
    return result


def join_table(
    stream: streams.Stream,
    table: Table,
    joiner: Joiner,
    *,
    left: bool,
    name: str | None,
    key: streams.Key,
) -> streams.Stream:
    """Look up each record's key in a table."""
    table.readable()
    source, key = stream, key or stream.key
    if stream.rekeyed:
        key = key or table.key
        source = stream.for_join(name, key)
    if left:
        source.keep_keyless()
    stream.engine.meet("a join with a table", source.lies_by, table.lies_by)
    result = streams.Stream(stream.engine, key, stream.value, lies_by=source.lies_by)
    result.origins = source.origins

    def looked_up(task: Task, key: Any, timestamp: int) -> Any:
        if isinstance(table, Versioned):
            return table.as_of(task, key, timestamp)
        return table.get(task, key)[0]

    def receive(task: Task, key: Any, value: Any, timestamp: int) -> None:
        if value is None or (key is None and not left):
            return
        other = None if key is None else looked_up(task, key, timestamp)
        if other is not None or left:
            made = attempted(joiner, value, other, instead=FAILED)
            if made is not FAILED:
                result.emit(task, key, made, timestamp)

    source.followers.append(receive)
    return result


@dataclass
class Sides:
    """What one task knows of a join of two streams.

    `kept` and `waiting` have the records of the left side (True) and of the right one (False).
    """

    now: int = -1
    times: dict[bool, int] = field(default_factory=lambda: {True: -1, False: -1})
    kept: dict[bool, list[tuple[int, Any, Any]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    waiting: list[tuple[int, bool, Any, Any]] = field(default_factory=list)


class StreamJoin:
    """The join of two streams; a record that matches nothing waits where it gets a null result."""

    def __init__(
        self,
        left: streams.Stream,
        right: streams.Stream,
        joiner: Joiner,
        windows: JoinWindows,
        kind: Kind,
        *,
        drops_late: bool,
    ) -> None:
        self._joiner, self._windows, self._kind = joiner, windows, kind
        self._drops_late = drops_late
        self._sides: PerTask = PerTask(Sides)
        self._engine = left.engine
        self._encode = (left.key or right.key or left.engine.default_key).serialize
        lies_by = left.lies_by | right.lies_by
        self._engine.meet("a join of streams", lies_by)
        self.result = streams.Stream(left.engine, left.key, left.value, lies_by=lies_by)
        self.result.origins = left.origins | right.origins
        self._streams = {True: left, False: right}
        self._late: dict[bool, streams.Stream] = {}
        left.followers.append(lambda *record: self._receive(True, *record))
        right.followers.append(lambda *record: self._receive(False, *record))

    def hand_on_late(self, is_left: bool, key: streams.Key, late: streams.Late | None) -> None:
        """Make the stream of what one side is too late with, in its own bytes."""
        if late is not None:
            side = self._streams[is_left]
            self._late[is_left] = streams.Stream(side.engine, key, side.value, lies_by=side.lies_by)
            self._late[is_left].origins = side.origins
            late(self._late[is_left])

    def _emits_null(self, is_left: bool) -> bool:
        return self._kind == "outer" or (self._kind == "left" and is_left)

    def _closes(self, timestamp: int, is_left: bool) -> int:
        """The last stream time at which a record may be matched in time."""
        windows = self._windows
        return timestamp + windows.grace_ms + (windows.after_ms if is_left else windows.before_ms)

    def _send(
        self, task: Task, key: Any, is_left: bool, own: Any, other: Any, timestamp: int
    ) -> bool:
        pair = (own, other) if is_left else (other, own)
        made = attempted(self._joiner, *pair, instead=FAILED)
        if made is not FAILED:
            self.result.emit(task, key, made, timestamp)
        return made is not FAILED

    def _receive(self, is_left: bool, task: Task, key: Any, value: Any, timestamp: int) -> None:
        sides: Sides = self._sides[task]
        if key is None and not self._emits_null(is_left):
            return
        if timestamp > sides.now:
            sides.now = timestamp
            self._give_up(task, sides)
        if value is None:
            return
        if key is None:
            self._send(task, None, is_left, value, None, timestamp)
            return
        self._engine.at(self, key, task)
        found = self._match(sides, is_left, key, timestamp)
        for other_timestamp, other in found:
            sides.waiting = [
                w for w in sides.waiting if w[:3] != (other_timestamp, not is_left, key)
            ]
            since = max(timestamp, other_timestamp)
            if not self._send(task, key, is_left, value, other, since):
                break
        keeps = True
        if not found and self._emits_null(is_left):
            if self._closes(timestamp, is_left) < sides.now:
                keeps = not self._drops_late
                self._send(task, key, is_left, value, None, timestamp)
            else:
                sides.waiting.append((timestamp, is_left, key, value))
        if keeps:
            sides.times[is_left] = max(sides.times[is_left], timestamp)
        if timestamp < self._horizon(sides, is_left):
            if is_left in self._late:
                self._late[is_left].emit(task, key, value, timestamp)
        elif keeps:
            sides.kept[is_left].append((timestamp, key, value))

    def _horizon(self, sides: Sides, is_left: bool) -> int:
        windows = self._windows
        since: int = sides.times[is_left]
        return since - windows.before_ms - windows.after_ms - windows.grace_ms

    def _match(
        self, sides: Sides, is_left: bool, key: Any, timestamp: int
    ) -> list[tuple[int, Any]]:
        before, after = self._windows.before_ms, self._windows.after_ms
        if not is_left:
            before, after = after, before
        horizon = self._horizon(sides, not is_left)
        found = [
            (when, value)
            for when, other_key, value in sides.kept[not is_left]
            if other_key == key
            and when >= horizon
            and timestamp - before <= when <= timestamp + after
        ]
        return sorted(found, key=lambda one: one[0])

    def _give_up(self, task: Task, sides: Sides) -> None:
        """Send null results for those that nothing can match in time any more."""
        over = [w for w in sides.waiting if self._closes(w[0], w[1]) < sides.now]
        sides.waiting = [w for w in sides.waiting if w not in over]
        for timestamp, is_left, key, value in sorted(
            over, key=lambda w: (w[0], w[1], self._encode(w[2]))
        ):
            if self._drops_late:
                sides.kept[is_left].remove((timestamp, key, value))
            with self._engine.under(()):  # not those of the record that moved stream time
                self._send(task, key, is_left, value, None, timestamp)
