"""Cache of the latest rows of a store by key and timestamp, because most records need them.

They are the rows of a side of a stream-stream join, or the rows of sliding windows.

Hot path: each record reads here. A RocksDB cursor costs more than everything else that is done for
a record, and is created only for rows that are not in memory.

For each key, all rows from some timestamp on are in memory, the key's floor. A key without rows in
memory has the common floor. Earlier rows are read from the store once, and then stay in memory. So
a read returns the same rows as a scan of the store, in the same order. Values have the buffer's
stored form: a mutable object is decoded for each read.

An abort discards these rows with the task; they are read from the store again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any

from headrace.state.buffer import Entry
from headrace.state.timed import TimedBuffer
from headrace.topology.serdes.join_serdes import KEPT

_BITS = 32
"""Bits of the number in a row's stamp; the higher bits are the timestamp."""

_SWEEP_MIN = 1_000
_SAMPLE = 16

Row = tuple[int, int, Any]
"""A stamp, a timestamp, and a value in the buffer's stored form."""

_NO_ROWS: list[Row] = []


class _KeyRows(list[Row]):
    """Rows of a key in order: all rows that are not earlier than `floor`.

    It is a single object per key, because a join may have as many keys as rows.
    """

    __slots__ = ("floor",)

    floor: int

    def index_of(self, stamp: int) -> int:
        return bisect_left(self, (stamp,))

    def insert_row(self, row: Row) -> None:
        """Insert or replace a row that is not the last row."""
        index = self.index_of(row[0])
        if self[index][0] == row[0]:
            self[index] = row
        else:
            self.insert(index, row)


class RecentRows:
    """Cache of the latest rows of a store by key and timestamp.

    Args:
        buffer: the rows. Code that changes them with `put_unexpired` or in `dirty` must change them
            here, too.
    """

    __slots__ = ("_buffer", "_floor", "_keys", "_sweep_count", "count")

    def __init__(self, buffer: TimedBuffer) -> None:
        self._buffer = buffer
        self._keys: dict[bytes, _KeyRows] = {}
        latest = buffer.latest()
        self._floor = 0 if latest is None else latest + 1
        """Keys that are not in memory have no rows from this timestamp on."""
        self.count = 0
        """Number of rows and keys in memory, including expired rows."""
        self._sweep_count = _SWEEP_MIN
        buffer.use_cache(self)

    def add(self, key: bytes, time: int, number: int, timestamp: int, value: Any) -> None:
        """Add a row of the buffer in its stored form; `time` and `number` end the row key."""
        rows = self._keys.get(key)
        if rows is None:
            if time < self._floor:
                return
            rows = self._keys[key] = _KeyRows()
            rows.floor = self._floor
            self.count += 1
        elif time < rows.floor:
            return
        stamp = time << _BITS | number
        if not rows or stamp > rows[-1][0]:
            rows.append((stamp, timestamp, value))
        else:
            rows.insert_row((stamp, timestamp, value))
        self.count += 1
        if self.count >= self._sweep_count:
            self._sweep()

    def latest_first(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, int, Any]]:
        """Return the rows of `between` in reverse order, each with its row-key timestamp first."""
        rows = self.between(key, start_ms, end_ms)
        return [(stamp >> _BITS, timestamp, value) for stamp, timestamp, value in reversed(rows)]

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[Row]:
        """Return a key's rows by timestamp, then number; the list must not be changed.

        Both bounds are inclusive; `start_ms` is not before the buffer's horizon.
        """
        rows = self._keys.get(key)
        if start_ms < (self._floor if rows is None else rows.floor):
            rows = self._read(key, rows, start_ms)
        if not rows:
            return _NO_ROWS
        end = end_ms + 1 << _BITS
        if rows[0][0] >= start_ms << _BITS and rows[-1][0] < end:
            return rows
        low = rows.index_of(start_ms << _BITS)
        return rows[low : bisect_left(rows, (end,), low)]

    def remove_last(self, key: bytes, time: int, count: int) -> list[bytes]:
        """Remove the last rows of a key and timestamp; return their keys in the buffer."""
        rows = self._keys.get(key)
        if time < (self._floor if rows is None else rows.floor):
            rows = self._read(key, rows, time)
        elif rows is None:
            return []
        high = rows.index_of(time + 1 << _BITS)
        low = max(rows.index_of(time << _BITS), high - count)
        removed = [key + KEPT.pack(*divmod(stamp, 1 << _BITS)) for stamp, _, _ in rows[low:high]]
        del rows[low:high]
        return removed

    def written(self, row_key: bytes) -> None:
        latest: int = KEPT.unpack_from(row_key, len(row_key) - KEPT.size)[0]
        rows = self._keys.pop(row_key[: -KEPT.size], None)
        if rows is not None:
            self.count -= 1 + len(rows)
            if rows:
                latest = max(latest, rows[-1][0] >> _BITS)
        self._floor = max(self._floor, latest + 1)

    def shrink(self, entries: int) -> None:
        self._sweep()
        for key in list(self._keys):
            if self.count <= entries:
                return
            rows = self._keys.pop(key)
            self.count -= 1 + len(rows)
            if rows:
                self._floor = max(self._floor, (rows[-1][0] >> _BITS) + 1)

    def sample(self) -> dict[bytes, Entry]:
        latest = islice(reversed(self._keys.items()), _SAMPLE)
        return {key: rows[-1][:0:-1] for key, rows in latest if rows}

    def _read(self, key: bytes, rows: _KeyRows | None, start_ms: int) -> _KeyRows:
        size = len(key) + KEPT.size
        stored = []
        before = self._floor if rows is None else rows.floor
        for row_key, (timestamp, value) in self._buffer.stored_range(
            key + KEPT.pack(start_ms, 0), key + KEPT.pack(before, 0)
        ):
            # A longer key may have rows between those of this one.
            if len(row_key) == size:
                time, number = KEPT.unpack_from(row_key, len(key))
                stored.append((time << _BITS | number, timestamp, value))
        if rows is None:
            rows = self._keys[key] = _KeyRows()
            self.count += 1
        rows.floor = start_ms
        rows[:0] = stored
        self.count += len(stored)
        if self.count >= self._sweep_count:
            self._sweep()
        return rows

    def _sweep(self) -> None:
        horizon, keys = self._buffer.horizon, self._keys
        expired = horizon << _BITS
        for rows in [rows for rows in keys.values() if rows and rows[0][0] < expired]:
            del rows[: rows.index_of(expired)]
        # Keep empty keys while the common floor is above the horizon, to avoid reads of the store.
        if self._floor <= horizon:
            for key in [key for key, rows in keys.items() if not rows]:
                del keys[key]
        self.count = len(keys) + sum(map(len, keys.values()))
        self._sweep_count = max(2 * self.count, _SWEEP_MIN)
