"""The records of a left or outer join that match nothing yet, and when they get their null result.

They lie in a store by time, side and key. The ends of the next ones are kept in a heap, so that the
store is read once for many of them, and not at all until stream time passes the first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from headrace.state.buffer import ABSENT, Buffer
from headrace.state.codec import TIMESTAMP
from headrace.topology.context.context import OperatorContext, Receive
from headrace.topology.errors import EarlierRecordError
from headrace.topology.operators.joins.join_rows import SideRows
from headrace.topology.serdes.join_serdes import WAITING_PREFIX_BYTES, waiting_row

Join = Callable[[Any, Any, Any], Any]
"""Called as ``join(key, left value, right value)``."""

_READ_ROWS = 1_000
_HEAP_MAX = 4_000
_NEVER = 2**63
_START = b""
_END = b"\xff" * 9
"""Behind all rows: their times are positive."""


class Waiting:
    """What waits on both sides, within one task.

    After each record, no row is left whose time to match is over.

    Args:
        left: what the left side keeps.
        right: what the right side keeps.
        left_ms: how long after its own time a left record can match, the grace period included.
        right_ms: the same of a right record; None where those do not wait.
        drops_late_matches: whether a record is to match nothing any more after its null result.
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
        """The join's stream time, of both sides."""
        self._ends: list[tuple[int, bytes]] = []
        self._read_to = _START
        """All rows before this one are in the heap."""
        self._next = -1
        """No row ends before stream time is later than this."""

    def advance(self, timestamp: int, forward: Receive) -> None:
        """Let stream time go on; those whose time to match is over get their null result."""
        self.time.value = timestamp
        if timestamp <= self._next:
            return
        try:
            while timestamp > self._next:
                self._emit_ended(timestamp, forward)
                self._read()
        except BaseException:
            # Where the application goes on, those that are left are found again.
            self._forget()
            raise

    def is_due(self, time: int) -> bool:
        """Return whether a record may get its null result when stream time reaches `time`."""
        return time > self.time.value and time > self._next

    def held_from(self) -> int | None:
        """Return the time of the earliest record that waits."""
        first = next(iter(self._buffer.scan()), None)
        return None if first is None else TIMESTAMP.unpack_from(first[0])[0]

    def hold(self, is_left: bool, key: Any, value: Any, timestamp: int) -> bool:
        """Let a record wait; returns whether something may still match it in time."""
        end = timestamp + self._spans_ms[is_left]
        if end < self.time.value:
            if self._drops_late_matches:
                self._rows[is_left].is_told = True
            return False
        row = waiting_row(timestamp, is_left, self._encode(key))
        before = self._buffer.get(row)[0]
        self._buffer.put(row, [*(before or ()), (is_left, value)], timestamp)
        if before is None and row < self._read_to:
            self._expect(end, row)
        return True

    def settle(self, is_left: bool, key: Any, timestamp: int) -> None:
        """A record of a side was matched: it waits no longer."""
        if timestamp + self._spans_ms[is_left] < self.time.value:
            return
        row = waiting_row(timestamp, is_left, self._encode(key))
        buffer = self._buffer
        # Whether there is such a row, without decoding it.
        entry = buffer.dirty.get(row) or buffer.clean.get(row) or buffer.load(row)
        if entry[0] is not None:
            self._end(row, timestamp)

    def _emit_ended(self, now: int, forward: Receive) -> None:
        """Those of the heap, in the order of their rows.

        They have no headers: the store keeps none, and the record at hand is of any other key.
        """
        ended = []
        while self._ends and self._ends[0][0] < now:
            ended.append(heappop(self._ends)[1])
        for row in sorted(set(ended)):
            values = self._buffer.get(row)[0]
            if values is None:
                continue  # it was matched meanwhile
            where = self._decode(row)
            timestamp = where.timestamp_ms
            self._end(row, timestamp)
            if self._drops_late_matches:
                key = row[WAITING_PREFIX_BYTES:]
                self._rows[where.is_left].remove_last(key, timestamp, len(values))
            for is_left, value in values:
                pair = (value, None) if is_left else (None, value)
                try:
                    result = self._join(where.key, *pair)
                except Exception as error:
                    # It must not cost the record that let stream time go on.
                    earlier = EarlierRecordError(error, timestamp)
                    self._failed(earlier, where.key, pair, timestamp, None)
                else:
                    forward(where.key, result, None, timestamp, None)

    def _end(self, row: bytes, timestamp: int) -> None:
        """Let go of a row: most came after the last commit, and are never written then."""
        buffer = self._buffer
        if buffer.clean.get(row) is ABSENT:
            buffer.forget(row)
        else:
            buffer.put(row, None, timestamp)

    def _read(self) -> None:
        """Find out when the next rows end, if their times do not say that it is too early."""
        if self.time.value > self._unread_end():
            found = list(islice(self._buffer.scan(self._read_to or None), _READ_ROWS))
            self._read_to = found[-1][0] + b"\x00" if len(found) == _READ_ROWS else _END
            for row, _, _ in found:
                where = self._decode(row)
                heappush(self._ends, (where.timestamp_ms + self._spans_ms[where.is_left], row))
        self._set_next()

    def _expect(self, end: int, row: bytes) -> None:
        if len(self._ends) >= _HEAP_MAX:
            self._forget()
            return
        heappush(self._ends, (end, row))
        self._next = min(self._next, end)

    def _forget(self) -> None:
        """Begin anew with what is in the store."""
        self._ends.clear()
        self._read_to = _START
        self._next = -1

    def _set_next(self) -> None:
        self._next = min(self._unread_end(), self._ends[0][0] if self._ends else _NEVER)

    def _unread_end(self) -> int:
        """The earliest end that a row can have that is not in the heap."""
        if self._read_to == _START:
            return -1
        if self._read_to == _END:
            return _NEVER
        time: int = TIMESTAMP.unpack_from(self._read_to)[0]
        return time + self._shortest_ms
