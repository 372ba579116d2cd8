"""Cache of the latest rows of a store by key and timestamp, because most records need them.

They are the rows of a side of a stream-stream join, or the rows of sliding windows.

Hot path: each record reads here. A RocksDB cursor costs more than everything else that is done for
a record, and is created only for rows that are not in memory.

For each key, all rows from some timestamp on are in memory, the key's floor. A key without rows in
memory has the common floor. Earlier rows are read from the store once, and then stay in memory. So
a read returns the same rows as a scan of the store, in the same order. Values have the buffer's
form: a mutable object is decoded for each read.

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
"""A stamp, a timestamp, and a value in the buffer's form."""

_NO_ROWS: list[Row] = []


class _KeyRows(list[Row]):
    """Rows of a key in order: all rows that are not earlier than `floor`.

    It is a single object per key, because a join may have as many keys as rows.
    """

    __slots__ = ("floor",)

    floor: int

    def place(self, stamp: int) -> int:
        return bisect_left(self, (stamp,))

    def insert_row(self, row: Row) -> None:
        """Insert or replace a row that is not the last row."""
        place = self.place(row[0])
        if self[place][0] == row[0]:
            self[place] = row
        else:
            self.insert(place, row)


class RecentRows:
    """Cache of the latest rows of a store by key and timestamp.

    Args:
        buffer: the rows. Code that changes them with `put_unexpired` or in `dirty` must change them
            here, too.
    """

    __slots__ = ("_buffer", "_floor", "_keys", "_sweep_at", "count")

    def __init__(self, buffer: TimedBuffer) -> None:
        self._buffer = buffer
        self._keys: dict[bytes, _KeyRows] = {}
        latest = buffer.latest()
        self._floor = 0 if latest is None else latest + 1
        """Keys that are not in memory have no rows from this timestamp on."""
        self.count = 0
        """Number of rows and keys in memory, including expired rows."""
        self._sweep_at = _SWEEP_MIN
        buffer.cache_in(self)

    def add(self, key: bytes, time: int, number: int, timestamp: int, value: Any) -> None:
        """Add a row of the buffer, in its form; `time` and `number` are the end of its row key."""
        found = self._keys.get(key)
        if found is None:
            if time < self._floor:
                return
            found = self._keys[key] = _KeyRows()
            found.floor = self._floor
            self.count += 1
        elif time < found.floor:
            return
        stamp = time << _BITS | number
        if not found or stamp > found[-1][0]:
            found.append((stamp, timestamp, value))
        else:
            found.insert_row((stamp, timestamp, value))
        self.count += 1
        if self.count >= self._sweep_at:
            self._sweep()

    def latest_first(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, int, Any]]:
        """Return the rows of `between` in reverse order, each with its row-key timestamp first."""
        found = self.between(key, start_ms, end_ms)
        return [(stamp >> _BITS, timestamp, value) for stamp, timestamp, value in reversed(found)]

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[Row]:
        """Return a key's rows by timestamp, then number; the list must not be changed.

        Both bounds are inclusive; `start_ms` is not before the buffer's horizon.
        """
        found = self._keys.get(key)
        if start_ms < (self._floor if found is None else found.floor):
            found = self._read(key, found, start_ms)
        if not found:
            return _NO_ROWS
        end = end_ms + 1 << _BITS
        if found[0][0] >= start_ms << _BITS and found[-1][0] < end:
            return found
        low = found.place(start_ms << _BITS)
        return found[low : bisect_left(found, (end,), low)]

    def remove_last(self, key: bytes, time: int, count: int) -> list[bytes]:
        """Remove the last rows of a key and timestamp; return their keys in the buffer."""
        found = self._keys.get(key)
        if time < (self._floor if found is None else found.floor):
            found = self._read(key, found, time)
        elif found is None:
            return []
        high = found.place(time + 1 << _BITS)
        low = max(found.place(time << _BITS), high - count)
        gone = [key + KEPT.pack(*divmod(stamp, 1 << _BITS)) for stamp, _, _ in found[low:high]]
        del found[low:high]
        return gone

    def written(self, row_key: bytes) -> None:
        latest: int = KEPT.unpack_from(row_key, len(row_key) - KEPT.size)[0]
        found = self._keys.pop(row_key[: -KEPT.size], None)
        if found is not None:
            self.count -= 1 + len(found)
            if found:
                latest = max(latest, found[-1][0] >> _BITS)
        self._floor = max(self._floor, latest + 1)

    def shrink(self, entries: int) -> None:
        self._sweep()
        for key in list(self._keys):
            if self.count <= entries:
                return
            found = self._keys.pop(key)
            self.count -= 1 + len(found)
            if found:
                self._floor = max(self._floor, (found[-1][0] >> _BITS) + 1)

    def sample(self) -> dict[bytes, Entry]:
        latest = islice(reversed(self._keys.items()), _SAMPLE)
        return {key: found[-1][:0:-1] for key, found in latest if found}

    def _read(self, key: bytes, found: _KeyRows | None, start_ms: int) -> _KeyRows:
        size = len(key) + KEPT.size
        rows = []
        before = self._floor if found is None else found.floor
        for row_key, (timestamp, value) in self._buffer.held(
            key + KEPT.pack(start_ms, 0), key + KEPT.pack(before, 0)
        ):
            # A longer key may have rows between those of this one.
            if len(row_key) == size:
                time, number = KEPT.unpack_from(row_key, len(key))
                rows.append((time << _BITS | number, timestamp, value))
        if found is None:
            found = self._keys[key] = _KeyRows()
            self.count += 1
        found.floor = start_ms
        found[:0] = rows
        self.count += len(rows)
        if self.count >= self._sweep_at:
            self._sweep()
        return found

    def _sweep(self) -> None:
        horizon, keys = self._buffer.horizon, self._keys
        expired = horizon << _BITS
        for found in [one for one in keys.values() if one and one[0][0] < expired]:
            del found[: found.place(expired)]
        # Keep empty keys while the common floor is above the horizon, to avoid reads of the store.
        if self._floor <= horizon:
            for key in [key for key, found in keys.items() if not found]:
                del keys[key]
        self.count = len(keys) + sum(map(len, keys.values()))
        self._sweep_at = max(2 * self.count, _SWEEP_MIN)
