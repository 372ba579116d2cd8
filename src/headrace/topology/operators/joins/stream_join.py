"""Join of two streams: records with the same key whose timestamps are within the join window.

Each side has two operators. `KeepSide` forwards a record, then stores it, so that a record of a
stream that is joined with itself is found once. `StreamJoinSide` joins it with the stored records
of the other side. In a left or outer join a record without a match waits. Its unmatched result is
emitted when stream time excludes further matches, before the record that advances stream time is
processed (Kafka Streams: `KStreamKStreamJoin`, which waits up to a second longer).

Stream time is stored in the offset metadata, and waiting records are in a store without expiry. So
no unmatched result is lost, however far stream time jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Any, ClassVar, Literal, cast

from headrace.state.buffer import ABSENT, ATOMS, Buffer
from headrace.state.codec import KEPT, TIMESTAMP
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, OperatorContext, Receive, TaskContext
from headrace.topology.context.number import Number
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import Arguments, EarlierRecordError
from headrace.topology.operators.record_cache import Uncached
from headrace.topology.operators.windows.emission import NEVER
from headrace.topology.operators.windows.lateness import split_late
from headrace.topology.serdes.join_serdes import (
    SEQUENCE,
    WAITING_PREFIX_BYTES,
    KeptKeySerde,
    waiting_row,
)

# Records of a side, stored as long as they may match.
#
# The store holds every record, including equal records: a row key has key, timestamp and a sequence
# number. The records of a key are adjacent, by timestamp, then in order of arrival.


_SEQUENCE_MAX = 2**31 - 1


class KeyEncoder:
    """Encoder that encodes a key only once for all operators of a join that process the record.

    Hot path: callers read `data` if `key` is the key, which saves the call.
    """

    __slots__ = ("_serialize", "data", "key")

    def __init__(self, serialize: Callable[[Any], bytes]) -> None:
        self._serialize = serialize
        self.key: Any = self
        self.data = b""

    def __call__(self, key: Any) -> bytes:
        if key is self.key:
            return self.data
        data = self._serialize(key)
        # A mutable object could be changed in place and be passed again as another key.
        if key.__class__ in ATOMS:
            self.key, self.data = key, data
        return data


class SideRows:
    """Records of a side of a join, within a task.

    They expire by the stream time of this side alone, as in Kafka Streams: a late record is joined
    as long as its matches on the other side are stored. A record is kept up to and including the
    last moment at which a timely record may match it, which is a millisecond longer than in Kafka
    Streams.

    Args:
        encode: encodes keys; shared by the operators of the join.
        time: the stream time of this side.
        sequence: the number of the last record.
        task: has the watermark that limits stream time.
    """

    __slots__ = (
        "_buffer",
        "_retention_ms",
        "_sequence",
        "_task",
        "_time",
        "encode",
        "is_reported",
    )

    def __init__(
        self,
        buffer: TimedBuffer,
        encode: KeyEncoder,
        retention_ms: int,
        time: Number,
        sequence: Number,
        task: TaskContext | None = None,
    ) -> None:
        self._buffer = buffer
        self.encode = encode
        self._retention_ms = retention_ms
        self._time = time
        self._sequence = sequence
        self._task = task or TaskContext()
        self.is_reported = False
        """Whether the current record has its unmatched result and must not match later."""
        if time.value >= 0:
            buffer.expire(time.value - retention_ms)

    @staticmethod
    def of(context: OperatorContext, store: str, retention_ms: int) -> SideRows:
        """Return the rows of a store; the same object for all operators of a task."""
        shared = context.shared
        shared_key = ("join side", store)
        if shared_key not in shared:
            buffer = context.buffers[store]
            assert isinstance(buffer, TimedBuffer), store
            shared[shared_key] = SideRows(
                buffer,
                key_encoder(context, store),
                retention_ms,
                context.number("time", owner=store),
                context.number("sequence", owner=store),
                context.task,
            )
        return cast("SideRows", shared[shared_key])

    def add(self, key: Any, value: Any, timestamp: int) -> bool:
        """Store a record; return whether it was in time to be stored."""
        if timestamp > self._time.value:
            self.advance(min(timestamp, self._task.watermark))
        elif timestamp < self._buffer.horizon:
            return False
        encode, sequence = self.encode, self._sequence
        data = encode.data if key is encode.key else encode(key)
        if 0 <= sequence.value < _SEQUENCE_MAX:
            number = sequence.value = sequence.value + 1
        else:
            number = self._next_sequence()
        row_key = data + KEPT.pack(timestamp, number)
        self._buffer.add(row_key, data, timestamp, number, value, timestamp)
        return True

    def advance(self, time: int) -> None:
        if time > self._time.value:
            self._time.value = time
            self._buffer.expire(time - self._retention_ms)

    def is_past(self, timestamp: int) -> bool:
        """Whether a record of this timestamp is too late to be stored."""
        return timestamp < self._buffer.horizon

    def between(self, key: Any, start_ms: int, end_ms: int) -> list[tuple[int, Any]]:
        """Return timestamps and values by timestamp, then arrival; both bounds are inclusive."""
        buffer = self._buffer
        if start_ms < buffer.horizon:
            start_ms = buffer.horizon
        if end_ms < start_ms:
            return []
        encode = self.encode
        data = encode.data if key is encode.key else encode(key)
        rows = buffer.between(data, start_ms, end_ms)
        if not rows or buffer.holds_objects:
            return rows
        from_stored_form = buffer.from_stored_form
        return [(timestamp, from_stored_form(value)) for timestamp, value in rows]

    def remove_last(self, key_bytes: bytes, timestamp: int, count: int) -> None:
        if timestamp >= self._buffer.horizon:
            self._buffer.remove_last(key_bytes, timestamp, count)

    def _next_sequence(self) -> int:
        last = self._sequence.value
        if last < 0:
            # A store that another program filled: its rows must not be overwritten.
            rows = self._buffer.scan()
            last = max(
                (SEQUENCE.unpack_from(row, len(row) - SEQUENCE.size)[0] for row, _, _ in rows),
                default=-1,
            )
        self._sequence.value = following = 0 if last >= _SEQUENCE_MAX else last + 1
        return following


def key_encoder(context: OperatorContext, store: str) -> KeyEncoder:
    serde = context.serdes(store)[0]
    assert isinstance(serde, KeptKeySerde), store
    assert serde.inner is not None, store
    serialize = serde.inner.serialize
    shared_key = ("join key", serialize)
    if shared_key not in context.shared:
        context.shared[shared_key] = KeyEncoder(serialize)
    return cast("KeyEncoder", context.shared[shared_key])


# Records of a left or outer join without a match, and the times of their unmatched results.
#
# They are stored by timestamp, side and key. A heap has the ends of the next records, so that the
# store is read once for many of them, and not at all until stream time passes the first.


Join = Callable[[Any, Any, Any], Any]
"""Called as ``join(key, left value, right value)``."""

_READ_ROWS = 1_000
_HEAP_MAX = 4_000
_START = b""
_END = b"\xff" * 9
"""Greater than all row keys, because timestamps are positive."""


class UnmatchedRecords:
    """Unmatched records of both sides of a left or outer join, within a task.

    After each record, every stored row can still match.

    Args:
        left_ms: how long after its timestamp a left record can match, including the grace period.
        right_ms: the same for a right record; None if right records do not wait.
        drops_late_matches: whether a record must not match after its unmatched result.
    """

    __slots__ = (
        "_buffer",
        "_decode",
        "_drops_late_matches",
        "_encode",
        "_ends",
        "_failed",
        "_join",
        "_next",
        "_read_to",
        "_rows",
        "_shortest_ms",
        "_spans_ms",
        "_task",
        "has_overdue",
        "time",
    )

    def __init__(
        self,
        context: OperatorContext,
        store: str,
        join: Join,
        *,
        left: SideRows,
        right: SideRows,
        left_ms: int,
        right_ms: int | None,
        drops_late_matches: bool,
    ) -> None:
        self._buffer: Buffer = context.buffers[store]
        self._decode = context.serdes(store)[0].deserialize
        self._encode = left.encode
        self._join = join
        self._failed = context.failed
        self._drops_late_matches = drops_late_matches
        self._rows = {True: left, False: right}
        self._spans_ms = {True: left_ms, False: left_ms if right_ms is None else right_ms}
        self._shortest_ms = min(self._spans_ms.values())
        self.time = context.number("time", owner=store)
        """Stream time of the join, from both sides."""
        self._ends: list[tuple[int, bytes]] = []
        self._read_to = _START
        """All rows before this row key are in the heap."""
        self._next = -1
        """No result is due before stream time is later than this."""
        self._task = context.task
        self.has_overdue = self.time.value >= 0
        """Whether results that were due before the last commit may remain."""

    def advance(self, timestamp: int, forward: Receive) -> None:
        """Advance stream time, and emit the unmatched results that are due."""
        self.time.value = timestamp
        if timestamp <= self._next:
            return
        try:
            while timestamp > self._next:
                self.has_overdue = not self._emit_ended(timestamp, forward)
                if self.has_overdue:
                    return
                self._read()
        except BaseException:
            # If the application continues, the left rows are read again.
            self._reset()
            raise

    def is_due(self, time: int) -> bool:
        return time > self.time.value and time > self._next

    def earliest_waiting(self) -> int | None:
        first = next(iter(self._buffer.scan()), None)
        return None if first is None else TIMESTAMP.unpack_from(first[0])[0]

    def add(self, is_left: bool, key: Any, value: Any, timestamp: int) -> bool:
        """Store an unmatched record; return False if it can no longer be matched."""
        end = timestamp + self._spans_ms[is_left]
        if end < self.time.value:
            if self._drops_late_matches:
                self._rows[is_left].is_reported = True
            return False
        row = waiting_row(timestamp, is_left, self._encode(key))
        values_before = self._buffer.get(row)[0]
        self._buffer.put(row, [*(values_before or ()), (is_left, value)], timestamp)
        if values_before is None and row < self._read_to:
            self._schedule(end, row)
        return True

    def remove_matched(self, is_left: bool, key: Any, timestamp: int) -> None:
        """Remove a record that was matched."""
        if timestamp + self._spans_ms[is_left] < self.time.value:
            return
        row = waiting_row(timestamp, is_left, self._encode(key))
        buffer = self._buffer
        # Check whether the row exists, without decoding it.
        entry = buffer.dirty.get(row) or buffer.clean.get(row) or buffer.load(row)
        if entry[0] is not None:
            self._remove(row, timestamp)

    def _emit_ended(self, now: int, forward: Receive) -> bool:
        """Emit due results in the order of their rows; return False if the rest waits for a commit.

        They have no headers: the store has none, and the current record has another key.
        """
        ended: dict[bytes, int] = {}
        while self._ends and self._ends[0][0] < now:
            end, row = heappop(self._ends)
            ended[row] = end
        budget = self._task.emission
        rows = sorted(ended)
        for number, row in enumerate(rows):
            if budget.is_spent:
                for remaining in rows[number:]:
                    heappush(self._ends, (ended[remaining], remaining))
                self._next = -1
                return False
            values = self._buffer.get(row)[0]
            if values is None:
                continue  # matched in the meantime
            record = self._decode(row)
            timestamp = record.timestamp_ms
            self._remove(row, timestamp)
            budget.spend()
            if self._drops_late_matches:
                key = row[WAITING_PREFIX_BYTES:]
                self._rows[record.is_left].remove_last(key, timestamp, len(values))
            for is_left, value in values:
                pair = (value, None) if is_left else (None, value)
                try:
                    result = self._join(record.key, *pair)
                except Exception as error:
                    # The record that advanced stream time must not be skipped.
                    earlier = EarlierRecordError(error, timestamp)
                    self._failed(earlier, record.key, pair, timestamp, None)
                else:
                    forward(record.key, result, None, timestamp, None)
        return True

    def _remove(self, row: bytes, timestamp: int) -> None:
        """Remove a row; most rows were added since the last commit and are never written."""
        buffer = self._buffer
        if buffer.clean.get(row) is ABSENT:
            buffer.drop_write(row)
        else:
            buffer.put(row, None, timestamp)

    def _read(self) -> None:
        """Read the ends of further rows into the heap, unless all of them end later."""
        if self.time.value > self._unread_end():
            rows = list(islice(self._buffer.scan(self._read_to or None), _READ_ROWS))
            self._read_to = rows[-1][0] + b"\x00" if len(rows) == _READ_ROWS else _END
            for row, _, _ in rows:
                record = self._decode(row)
                heappush(self._ends, (record.timestamp_ms + self._spans_ms[record.is_left], row))
        self._set_next()

    def _schedule(self, end: int, row: bytes) -> None:
        if len(self._ends) >= _HEAP_MAX:
            self._reset()
            return
        heappush(self._ends, (end, row))
        self._next = min(self._next, end)

    def _reset(self) -> None:
        self._ends.clear()
        self._read_to = _START
        self._next = -1

    def _set_next(self) -> None:
        self._next = min(self._unread_end(), self._ends[0][0] if self._ends else NEVER)

    def _unread_end(self) -> int:
        """Return the earliest possible end of the rows that are not in the heap."""
        if self._read_to == _START:
            return -1
        if self._read_to == _END:
            return NEVER
        time: int = TIMESTAMP.unpack_from(self._read_to)[0]
        return time + self._shortest_ms


LateMatch = Literal["emit", "drop"]


@dataclass(frozen=True, slots=True)
class Waits:
    """How the records of a left or outer join wait.

    Args:
        store: the store of waiting records.
        left_ms: how long after its timestamp a left record can match, including the grace period.
        right_ms: the same for a right record; None if right records do not wait.
        late_match: whether a record may still match after its unmatched result.
    """

    store: str
    left_ms: int
    right_ms: int | None
    late_match: LateMatch


@dataclass(frozen=True, slots=True)
class KeepSide(OperatorSpec):
    """Spec of the operator that stores the records of a side."""

    store: str
    retention_ms: int
    is_left: bool = True

    repartition_advice: ClassVar[str] = 'join(name="...")'

    store_call: ClassVar[str] = 'join(store="...")'

    @property
    def serde_arguments(self) -> Arguments:
        return {} if self.is_left else {"value": "other_value"}

    def make(self, context: OperatorContext, /) -> _StoreSide:
        return _StoreSide(self, context)


@dataclass(frozen=True, slots=True)
class StreamJoinSide(OperatorSpec):
    """Spec of the operator that joins a side's records with the other side's records.

    Args:
        own: the store of this side.
        other: the store of the other side.
        before_ms: how far before a record its matches may be.
        after_ms: how far after a record its matches may be.
        retention_ms: how long both sides keep their records.
        joiner: called as ``joiner(left value, right value)``.
        with_key: call ``joiner(key, left value, right value)`` instead.
        emits_null: whether a record of this side without a match has an unmatched result.
        waits: how such records wait, in a left or outer join.
    """

    is_left: bool
    own: str
    other: str
    before_ms: int
    after_ms: int
    retention_ms: int
    joiner: Callable[..., Any]
    with_key: bool
    emits_null: bool
    waits: Waits | None

    @property
    def row_kind(self) -> RowKind:
        return RowKind("join of streams", {"before": self.before_ms, "after": self.after_ms})

    def fills(self, store: str, /) -> bool:
        return store == self.own

    store_call: ClassVar[str] = 'join(store="...")'

    def make(self, context: OperatorContext, /) -> _StreamJoin:
        return _StreamJoin(self, context)


class _StoreSide(Uncached):
    """Hot path: stores each record of a side."""

    __slots__ = ("_dropped", "_late", "_rows")

    def __init__(self, spec: KeepSide, context: OperatorContext) -> None:
        forward, self._late = split_late(context.node, context.children)
        assert forward is not None, context.node
        super().__init__(forward)
        self._dropped = context.dropped
        self._rows = SideRows.of(context, spec.store, spec.retention_ms)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        rows = self._rows
        self._forward(key, value, None, timestamp, headers)
        if key is None or value is None:
            return
        if rows.is_reported:
            rows.is_reported = False
            is_late = rows.is_past(timestamp)
        else:
            is_late = not rows.add(key, value, timestamp)
        if is_late:
            if self._late is None:
                self._dropped("late")
            else:
                self._late(key, value, None, timestamp, headers)


class _StreamJoin(Uncached):
    """Hot path: joins each record of a side."""

    delays_results: ClassVar[bool] = True

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_dropped",
        "_emits_null",
        "_is_left",
        "_join",
        "_other",
        "_task",
        "_unmatched",
    )

    def __init__(self, spec: StreamJoinSide, context: OperatorContext) -> None:
        self._is_left = spec.is_left
        self._before_ms = spec.before_ms
        self._after_ms = spec.after_ms
        self._emits_null = spec.emits_null
        super().__init__(context.forward)
        self._dropped = context.dropped
        self._join = _from_side(spec)
        self._other = SideRows.of(context, spec.other, spec.retention_ms)
        self._task = context.task
        self._unmatched = _unmatched(spec, context)

    def is_due(self, time: int, /) -> bool:
        return self._unmatched is not None and self._unmatched.is_due(time)

    def earliest_waiting(self) -> int | None:
        return None if self._unmatched is None else self._unmatched.earliest_waiting()

    @property
    def emits_earlier(self) -> bool:
        return self._unmatched is not None

    def has_remaining_results(self) -> bool:
        return self._unmatched is not None and self._unmatched.has_overdue

    def emit_remaining(self) -> None:
        assert self._unmatched is not None
        self._unmatched.has_overdue = False
        self._unmatched.advance(self._unmatched.time.value, self._forward)

    def advance(self, time: int, /) -> None:
        if self._unmatched is not None and time > self._unmatched.time.value:
            self._unmatched.advance(time, self._forward)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        unmatched, forward = self._unmatched, self._forward
        if unmatched is not None and timestamp > unmatched.time.value < self._task.watermark:
            unmatched.advance(min(timestamp, self._task.watermark), forward)
        if value is None:
            self._dropped("null value")
            return
        if key is None:
            if self._emits_null:
                forward(None, self._join(None, value, None), None, timestamp, headers)
            else:
                self._dropped("null key")
            return
        matches = self._other.between(key, timestamp - self._before_ms, timestamp + self._after_ms)
        if not matches:
            if self._emits_null:
                self._handle_unmatched(key, value, timestamp, headers)
            return
        for other_timestamp, other in matches:
            if unmatched is not None:
                unmatched.remove_matched(not self._is_left, key, other_timestamp)
            later = max(timestamp, other_timestamp)
            forward(key, self._join(key, value, other), None, later, headers)

    def _handle_unmatched(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        assert self._unmatched is not None
        if not self._unmatched.add(self._is_left, key, value, timestamp):
            self._forward(key, self._join(key, value, None), None, timestamp, headers)


def _unmatched(spec: StreamJoinSide, context: OperatorContext) -> UnmatchedRecords | None:
    """Return the unmatched records of a join; the same object for both sides of a task."""
    waits = spec.waits
    if waits is None:
        return None
    shared_key = ("waiting", waits.store)
    if shared_key not in context.shared:
        left, right = (spec.own, spec.other) if spec.is_left else (spec.other, spec.own)
        context.shared[shared_key] = UnmatchedRecords(
            context,
            waits.store,
            _joiner_with_key(spec),
            left=SideRows.of(context, left, spec.retention_ms),
            right=SideRows.of(context, right, spec.retention_ms),
            left_ms=waits.left_ms,
            right_ms=waits.right_ms,
            drops_late_matches=waits.late_match == "drop",
        )
    return cast("UnmatchedRecords", context.shared[shared_key])


def _from_side(spec: StreamJoinSide) -> Join:
    """Return the joiner as a function of the key, this side's value and the other side's value."""
    joiner = spec.joiner
    if spec.with_key:
        return joiner if spec.is_left else lambda key, right, left: joiner(key, left, right)
    if spec.is_left:
        return lambda _, left, right: joiner(left, right)
    return lambda _, right, left: joiner(left, right)


def _joiner_with_key(spec: StreamJoinSide) -> Join:
    joiner = spec.joiner
    if spec.with_key:
        return joiner
    return lambda _, left, right: joiner(left, right)
