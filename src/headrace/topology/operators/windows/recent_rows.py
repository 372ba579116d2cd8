"""The latest rows of a store by key and time in memory: what nearly every record asks for.

They are the rows of one side of a join of two streams, or those of sliding windows.

Hot path: each record reads here. A RocksDB cursor costs more than all else that is done for a
record, and is made only for rows that are not in memory.

What is in memory of a key are all its rows from some time on, its floor; a key of which nothing is
in memory has the common floor. Rows before it are read from the store once, and then stay. So a
read sees what a scan of the store would, in the same order. Values are held as the buffer holds
them: an object that a user can change is decoded for each read.

An abort takes this away with the task; what the store holds is read again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any

from headrace.state.buffer import Entry
from headrace.state.timed import TimedBuffer
from headrace.topology.serdes.join_serdes import KEPT

_BITS = 32
"""A row's stamp: its time, and behind it as many bits for its number."""

_SWEEP_MIN = 1_000
_SAMPLE = 16

Row = tuple[int, int, Any]
"""A stamp, a timestamp, and a value as the buffer holds it."""

_NO_ROWS: list[Row] = []


class _KeyRows(list[Row]):
    """The rows of one key in order: all of them that are not earlier than `floor`.

    One object for a key, as in a join there may be as many keys as rows.
    """

    __slots__ = ("floor",)

    floor: int

    def place(self, stamp: int) -> int:
        """How many rows are before those of a stamp."""
        return bisect_left(self, (stamp,))

    def insert_row(self, row: Row) -> None:
        """Put a row in its place, where it is not the last one."""
        place = self.place(row[0])
        if self[place][0] == row[0]:
            self[place] = row
        else:
            self.insert(place, row)


class RecentRows:
    """Cache of the latest rows of a store by key and time.

    Args:
        buffer: the rows; who changes them by `put_unexpired` or in `dirty` changes them here, too.
    """

    __slots__ = ("_buffer", "_floor", "_keys", "_sweep_at", "count")

    def __init__(self, buffer: TimedBuffer) -> None:
        self._buffer = buffer
        self._keys: dict[bytes, _KeyRows] = {}
        latest = buffer.latest()
        self._floor = 0 if latest is None else latest + 1
        """No key that is not in memory has rows from here on."""
        self.count = 0
        """How many rows and keys are in memory, expired ones included."""
        self._sweep_at = _SWEEP_MIN
        buffer.cache_in(self)

    def add(self, key: bytes, time: int, number: int, timestamp: int, value: Any) -> None:
        """Keep a row that is in the buffer now, its value as it is held there.

        Args:
            time: behind the key in the row's key; `number` behind that.
        """
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
        """As `between`, from the last to the first, with the time of each in front."""
        found = self.between(key, start_ms, end_ms)
        return [(stamp >> _BITS, timestamp, value) for stamp, timestamp, value in reversed(found)]

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[Row]:
        """The rows of a key, both bounds included, by time, then number; not to be changed.

        Args:
            start_ms: not before the buffer's horizon.
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
        """Let go of the last rows of a key and time; returns their keys in the buffer."""
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
        """Read a key again, of which somebody else has written a row."""
        latest: int = KEPT.unpack_from(row_key, len(row_key) - KEPT.size)[0]
        found = self._keys.pop(row_key[: -KEPT.size], None)
        if found is not None:
            self.count -= 1 + len(found)
            if found:
                latest = max(latest, found[-1][0] >> _BITS)
        self._floor = max(self._floor, latest + 1)

    def shrink(self, entries: int) -> None:
        """Let go of what has expired, then of keys, until only so many rows and keys are left."""
        self._sweep()
        for key in list(self._keys):
            if self.count <= entries:
                return
            found = self._keys.pop(key)
            self.count -= 1 + len(found)
            if found:
                self._floor = max(self._floor, (found[-1][0] >> _BITS) + 1)

    def sample(self) -> dict[bytes, Entry]:
        """Some rows, from which the memory of all is estimated."""
        latest = islice(reversed(self._keys.items()), _SAMPLE)
        return {key: found[-1][:0:-1] for key, found in latest if found}

    def _read(self, key: bytes, found: _KeyRows | None, start_ms: int) -> _KeyRows:
        """Read what is missing of a key from the store."""
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
        """Let go of what has expired."""
        horizon, keys = self._buffer.horizon, self._keys
        expired = horizon << _BITS
        for found in [one for one in keys.values() if one and one[0][0] < expired]:
            del found[: found.place(expired)]
        # That a key has no rows need not be read again as long as others may have some.
        if self._floor <= horizon:
            for key in [key for key, found in keys.items() if not found]:
                del keys[key]
        self.count = len(keys) + sum(map(len, keys.values()))
        self._sweep_at = max(2 * self.count, _SWEEP_MIN)
