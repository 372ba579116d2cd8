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

Row = tuple[int, Any]
"""A timestamp, and a value as the buffer holds it."""


class _KeyRows:
    """The rows of one key: all of them that are not earlier than `floor`."""

    __slots__ = ("floor", "rows", "stamps")

    def __init__(self, floor: int, stamps: list[int], rows: list[Row]) -> None:
        self.floor = floor
        self.stamps = stamps
        self.rows = rows

    def insert(self, stamp: int, row: Row) -> None:
        """Put a row in its place, where it is not the last one."""
        place = bisect_left(self.stamps, stamp)
        if self.stamps[place] == stamp:
            self.rows[place] = row
        else:
            self.stamps.insert(place, stamp)
            self.rows.insert(place, row)

    def cut(self, low: int, high: int) -> None:
        """Let go of the rows in these places."""
        del self.stamps[low:high]
        del self.rows[low:high]


class RecentRows:
    """See the module.

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

    def add(self, key: bytes, time: int, number: int, row: Row) -> None:
        """Keep a row that is in the buffer now, its value as it is held there.

        Args:
            time: behind the key in the row's key; `number` behind that.
        """
        found = self._keys.get(key)
        if found is None:
            if time < self._floor:
                return
            found = self._keys[key] = _KeyRows(self._floor, [], [])
            self.count += 1
        elif time < found.floor:
            return
        stamp = time << _BITS | number
        stamps = found.stamps
        if not stamps or stamp > stamps[-1]:
            stamps.append(stamp)
            found.rows.append(row)
        else:
            found.insert(stamp, row)
        self.count += 1
        if self.count >= self._sweep_at:
            self._sweep()

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[Row]:
        """The rows of a key, both bounds included, by time, then number.

        Args:
            start_ms: not before the buffer's horizon.
        """
        found, low, high = self._found(key, start_ms, end_ms)
        return [] if found is None else found.rows[low:high]

    def latest_first(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, Row]]:
        """The same with the time of each, from the last to the first."""
        found, low, high = self._found(key, start_ms, end_ms)
        if found is None:
            return []
        times = [stamp >> _BITS for stamp in found.stamps[low:high]]
        placed = list(zip(times, found.rows[low:high], strict=True))
        placed.reverse()
        return placed

    def _found(self, key: bytes, start_ms: int, end_ms: int) -> tuple[_KeyRows | None, int, int]:
        """The rows of a key, and from which to before which they are wanted."""
        found = self._keys.get(key)
        if start_ms < (self._floor if found is None else found.floor):
            found = self._read(key, found, start_ms)
        elif found is None:
            return None, 0, 0
        stamps = found.stamps
        low = bisect_left(stamps, start_ms << _BITS)
        if low == len(stamps):
            return None, 0, 0
        return found, low, bisect_left(stamps, end_ms + 1 << _BITS, low)

    def remove_last(self, key: bytes, time: int, count: int) -> list[bytes]:
        """Let go of the last rows of a key and time; returns their keys in the buffer."""
        found = self._keys.get(key)
        if time < (self._floor if found is None else found.floor):
            found = self._read(key, found, time)
        elif found is None:
            return []
        high = bisect_left(found.stamps, time + 1 << _BITS)
        low = max(bisect_left(found.stamps, time << _BITS, 0, high), high - count)
        gone = [key + KEPT.pack(*divmod(stamp, 1 << _BITS)) for stamp in found.stamps[low:high]]
        found.cut(low, high)
        return gone

    def written(self, row_key: bytes) -> None:
        """Read a key again, of which somebody else has written a row."""
        latest: int = KEPT.unpack_from(row_key, len(row_key) - KEPT.size)[0]
        found = self._keys.pop(row_key[: -KEPT.size], None)
        if found is not None:
            self.count -= 1 + len(found.stamps)
            if found.stamps:
                latest = max(latest, found.stamps[-1] >> _BITS)
        self._floor = max(self._floor, latest + 1)

    def shrink(self, entries: int) -> None:
        """Let go of what has expired, then of keys, until only so many rows and keys are left."""
        self._sweep()
        for key in list(self._keys):
            if self.count <= entries:
                return
            stamps = self._keys.pop(key).stamps
            self.count -= 1 + len(stamps)
            if stamps:
                self._floor = max(self._floor, (stamps[-1] >> _BITS) + 1)

    def sample(self) -> dict[bytes, Entry]:
        """Some rows, from which the memory of all is estimated."""
        latest = islice(reversed(self._keys.items()), _SAMPLE)
        return {key: (found.rows[-1][1], found.rows[-1][0]) for key, found in latest if found.rows}

    def _read(self, key: bytes, found: _KeyRows | None, start_ms: int) -> _KeyRows:
        """Read what is missing of a key from the store."""
        size = len(key) + KEPT.size
        stamps, rows = [], []
        before = self._floor if found is None else found.floor
        for row_key, row in self._buffer.held(
            key + KEPT.pack(start_ms, 0), key + KEPT.pack(before, 0)
        ):
            # A longer key may have rows between those of this one.
            if len(row_key) == size:
                time, number = KEPT.unpack_from(row_key, len(key))
                stamps.append(time << _BITS | number)
                rows.append(row)
        if found is None:
            found = self._keys[key] = _KeyRows(start_ms, stamps, rows)
            self.count += 1
        else:
            found.floor = start_ms
            found.stamps[:0] = stamps
            found.rows[:0] = rows
        self.count += len(rows)
        if self.count >= self._sweep_at:
            self._sweep()
        return found

    def _sweep(self) -> None:
        """Let go of what has expired."""
        horizon = self._buffer.horizon
        expired = horizon << _BITS
        self.count = 0
        for key, found in list(self._keys.items()):
            if found.stamps and found.stamps[0] < expired:
                found.cut(0, bisect_left(found.stamps, expired))
            # That a key has no rows need not be read again as long as others may have some.
            if found.stamps or self._floor > horizon:
                self.count += 1 + len(found.stamps)
            else:
                del self._keys[key]
        self._sweep_at = max(2 * self.count, _SWEEP_MIN)
