"""Cache of the latest rows of a store by key and timestamp, because most records need them.

They are the rows of a side of a stream-stream join, or the rows of sliding windows.

Hot path: each record reads here. A RocksDB cursor costs more than everything else that is done for
a record, and is created only for rows that are not in memory.

Each key has a floor: all of its rows from that timestamp on are in memory. Earlier rows are read
from the store once, and then stay in memory. So a read returns the same rows as a scan of the
store, in the same order. Values have the buffer's stored form: a mutable object is decoded for each
read.

Evicting a key raises only its own floor. If the floors of evicted keys take too much memory, the
oldest are merged into the common floor, which applies to all other keys.

An abort discards these rows with the task; they are read from the store again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any

from headrace.state.codec import memory_of
from headrace.state.timed import TimedBuffer
from headrace.topology.serdes.join_serdes import KEPT

_BITS = 32
"""Bits of the sequence number in a sort key; the higher bits are the row's time."""

_SWEEP_MIN = 1_000
_SAMPLE = 16
_ROW_BYTES = 145
"""Measured memory of a row without its value: its tuple, two integers, and its place in a list."""

_EVICTED_DIVISOR = 4
"""`shrink` limits the floors of evicted keys to this fraction of the entries."""

Row = tuple[int, int, Any]
"""Sort key (time and sequence number of the row key), timestamp, and value in stored form."""

_NO_ROWS: list[Row] = []


class _KeyRows(list[Row]):
    """Rows of a key in order: all rows that are not earlier than `floor`.

    It is a single object per key, because a join may have as many keys as rows.
    """

    __slots__ = ("floor",)

    floor: int

    def index_of(self, sort_key: int) -> int:
        return bisect_left(self, (sort_key,))

    def insert_row(self, row: Row) -> None:
        """Insert a row before the last row, or replace the row with the same sort key."""
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

    __slots__ = ("_buffer", "_evicted", "_floor", "_keys", "_sweep_count", "count")

    def __init__(self, buffer: TimedBuffer) -> None:
        self._buffer = buffer
        self._keys: dict[bytes, _KeyRows] = {}
        self._evicted: dict[bytes, int] = {}
        """Floors of keys whose rows were evicted, in the order of the evictions."""
        latest = buffer.latest()
        self._floor = 0 if latest is None else latest + 1
        """Common floor: that of the keys in neither `_keys` nor `_evicted`."""
        self.count = 0
        """Upper bound of the rows, keys and evicted keys in memory; exact after a sweep."""
        self._sweep_count = _SWEEP_MIN
        buffer.use_cache(self)

    def add(self, key: bytes, time: int, sequence: int, timestamp: int, value: Any) -> None:
        """Add a row in its stored form; `time` and `sequence` are the suffix of the row key."""
        rows = self._keys.get(key)
        if rows is None:
            # Inline, because most records of a join have a new key.
            floor = self._floor
            if self._evicted:
                floor = self._evicted.get(key, floor)
            if time < floor:
                return
            rows = self._keys[key] = _KeyRows()
            rows.floor = floor
            if not self._evicted or self._evicted.pop(key, None) is None:
                self.count += 1
        elif time < rows.floor:
            return
        sort_key = time << _BITS | sequence
        if not rows or sort_key > rows[-1][0]:
            rows.append((sort_key, timestamp, value))
        else:
            rows.insert_row((sort_key, timestamp, value))
        self.count += 1
        if self.count >= self._sweep_count:
            self._sweep()

    def latest_first(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, int, Any]]:
        """Return the rows of `between` in reverse order, each with its row-key timestamp first."""
        rows = self.between(key, start_ms, end_ms)
        return [
            (sort_key >> _BITS, timestamp, value) for sort_key, timestamp, value in reversed(rows)
        ]

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[Row]:
        """Return a key's rows by timestamp, then number; the list must not be changed.

        Both bounds are inclusive; `start_ms` is not before the buffer's horizon.
        """
        rows = self._keys.get(key)
        floor = self._floor if rows is None else rows.floor
        if rows is None and self._evicted:
            floor = self._evicted.get(key, floor)
        if start_ms < floor:
            rows = self._read(key, rows, start_ms)
        if not rows:
            return _NO_ROWS
        end = end_ms + 1 << _BITS
        if rows[0][0] >= start_ms << _BITS and rows[-1][0] < end:
            return rows
        low = rows.index_of(start_ms << _BITS)
        return rows[low : bisect_left(rows, (end,), low)]

    def remove_last(self, key: bytes, time: int, count: int) -> list[bytes]:
        """Remove up to `count` latest rows at `time`; return their row keys."""
        rows = self._keys.get(key)
        if time < (self._floor_of(key) if rows is None else rows.floor):
            rows = self._read(key, rows, time)
        elif rows is None:
            return []
        high = rows.index_of(time + 1 << _BITS)
        low = max(rows.index_of(time << _BITS), high - count)
        removed = [
            key + KEPT.pack(*divmod(sort_key, 1 << _BITS)) for sort_key, _, _ in rows[low:high]
        ]
        del rows[low:high]
        return removed

    def invalidate(self, row_key: bytes) -> None:
        key = row_key[: -KEPT.size]
        time: int = KEPT.unpack_from(row_key, len(key))[0]
        rows = self._keys.pop(key, None)
        if rows is None:
            floor = self._evicted.get(key)
            if floor is None:
                floor = self._floor
                self.count += 1
            self._evicted[key] = max(floor, time + 1)
        else:
            self._evict(key, rows)
            self._evicted[key] = max(self._evicted[key], time + 1)

    def shrink(self, entries: int) -> None:
        self._sweep()
        if self.count <= entries:
            return
        for key in list(self._keys):
            if self.count <= entries:
                break
            self._evict(key, self._keys.pop(key))
        surplus = max(self.count - entries, len(self._evicted) - entries // _EVICTED_DIVISOR)
        for key in list(islice(self._evicted, max(0, surplus))):
            self._floor = max(self._floor, self._evicted.pop(key))
            self.count -= 1

    def row_bytes(self) -> int:
        latest = islice(reversed(self._keys.values()), _SAMPLE)
        values = [rows[-1][2] for rows in latest if rows]
        row_count = self.count - len(self._keys) - len(self._evicted)
        value_bytes = memory_of(values) * row_count // max(1, len(values) * self.count)
        return _ROW_BYTES + value_bytes

    def _floor_of(self, key: bytes) -> int:
        """Return the floor of a key without rows in memory."""
        return self._evicted.get(key, self._floor)

    def _evict(self, key: bytes, rows: _KeyRows) -> None:
        """Replace the rows of a key, which are no longer in `_keys`, by their floor."""
        self.count -= len(rows)
        self._evicted[key] = max(rows.floor, (rows[-1][0] >> _BITS) + 1) if rows else rows.floor

    def _read(self, key: bytes, rows: _KeyRows | None, start_ms: int) -> _KeyRows:
        before = self._floor_of(key) if rows is None else rows.floor
        stored = []
        for row_key, (timestamp, value) in self._buffer.rows_of(
            key, KEPT.pack(start_ms, 0), KEPT.pack(before, 0)
        ):
            time, sequence = KEPT.unpack_from(row_key, len(key))
            stored.append((time << _BITS | sequence, timestamp, value))
        if rows is None:
            rows = self._keys[key] = _KeyRows()
            if self._evicted.pop(key, None) is None:
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
        for key in [key for key, floor in self._evicted.items() if floor <= horizon]:
            del self._evicted[key]
        # Keep empty keys while the common floor is above the horizon, to avoid reads of the store.
        if self._floor <= horizon:
            for key in [key for key, rows in keys.items() if not rows and rows.floor <= horizon]:
                del keys[key]
        self.count = len(keys) + sum(map(len, keys.values())) + len(self._evicted)
        self._sweep_count = max(2 * self.count, _SWEEP_MIN)
