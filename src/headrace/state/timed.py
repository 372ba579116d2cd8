"""Buffer of a store's uncommitted rows with a time index and expiry by time.

Rows older than `horizon` are invisible to every reader, even while they are on disk. A commit
deletes them from disk: a whole segment, or a limited number of rows that the time index finds. In
the changelog they are deleted by the topic's own retention. So an expired row costs no tombstone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, cast

from headrace.state.buffer import ABSENT, Buffer, Coding, Entry
from headrace.state.codec import KEPT, decode_timestamped, memory_of
from headrace.state.layout import Layout, TimedRows
from headrace.state.store import CommittedStore, Delta, RangeDelta

EXPIRED_PER_COMMIT = 20_000
"""Maximum number of expired rows that a commit deletes one by one; the next commit continues."""


class TimedBuffer(Buffer):
    """`Buffer` with an index by time.

    >>> from headrace.state.codec import TIMESTAMP
    >>> from headrace.state.memory import MemoryTaskState
    >>> from headrace.state.spec import StoreSpec
    >>> spec = StoreSpec("w", kind="memory", layout="window")
    >>> committed = MemoryTaskState([spec]).store("w")
    >>> coding = Coding(encode=bytes, decode=bytes)
    >>> rows = TimedBuffer("w", committed, coding, layout=spec.rows)
    >>> key = b"k" + TIMESTAMP.pack(5) + bytes(4)
    >>> rows.put(key, b"row", 7)
    >>> [time for time, _ in rows.by_time(0, 6)], rows.earliest()
    ([5], 5)
    >>> rows.expire(6)
    >>> rows.get(key)
    (None, -1)
    """

    __slots__ = (
        "_deleted_to",
        "_dirty_by_key",
        "_fresh",
        "_grouped_count",
        "_indexed_count",
        "_layout",
        "_on_disk",
        "_recent",
        "_time_of",
        "_times",
        "horizon",
    )

    def __init__(
        self, name: str, committed: CommittedStore, coding: Coding, *, layout: Layout
    ) -> None:
        assert layout.time_of is not None, name
        self._layout = layout
        self._recent: RecentRows | None = None
        """Set if the rows of keys are read by time; it replaces `clean`."""
        self._time_of = layout.time_of
        self._on_disk = committed
        self._committed: TimedRows  # of the base class, with more methods
        self._fresh: dict[int, dict[bytes, None]] = {}
        """Keys of rows written since the last commit, by the row's time."""
        self._times: list[int] = []
        """The times in `_fresh`, sorted."""
        self._indexed_count = 0
        """Number of dirty rows in `_fresh` and `_times`; later rows are added on demand."""
        self._dirty_by_key: dict[bytes, list[bytes]] = {}
        """Row keys of dirty rows, by their key without the times."""
        self._grouped_count = 0
        """Number of dirty rows in `_dirty_by_key`; later rows are added on demand."""
        self._deleted_to = 0
        self.horizon = 0
        """Time before which rows have expired, in milliseconds."""
        super().__init__(name, self._view(), coding)

    def _view(self) -> TimedRows:
        return cast(TimedRows, self._layout.view(self._on_disk))

    def get(self, key: bytes) -> Entry:
        return ABSENT if self._time_of(key) < self.horizon else super().get(key)

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        time = self._time_of(key)
        if time < self.horizon:
            return
        super().put(key, value, timestamp)
        if self._recent is not None:
            self._recent.invalidate(key)

    def put_unexpired(self, key: bytes, value: Any, timestamp: int) -> None:
        """Write an unexpired row of a store without reads of keys by time."""
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        self.dirty[key] = (value, timestamp)

    # Rows of a key by time, for joins and sliding windows. From the first call on, these rows are
    # cached in memory. All rows are of a window store, and unexpired.

    def add(
        self, row_key: bytes, key: bytes, time: int, number: int, value: Any, timestamp: int
    ) -> Any:
        """Write a row, and return the value in its stored form; the value None deletes the row.

        Args:
            row_key: The key with the time and the sequence number.
            key: The key without them.
            time: The time in the row key, in milliseconds.
            number: The sequence number.
            timestamp: The timestamp of the row, in milliseconds.
        """
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        recent = self._recent or self._load_recent()
        self.dirty[row_key] = (value, timestamp)
        if value is None:
            recent.remove_last(key, time, 1)
        else:
            recent.add(key, time, number, timestamp, value)
        return value

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, Any]]:
        """Return timestamps and stored values of a key's rows by time, then by number.

        Both bounds are inclusive.
        """
        rows = (self._recent or self._load_recent()).between(key, start_ms, end_ms)
        return [(timestamp, value) for _, timestamp, value in rows] if rows else []

    def latest_first(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, int, Any]]:
        """Return time, timestamp and stored value of the rows of `between` in reverse order."""
        return (self._recent or self._load_recent()).latest_first(key, start_ms, end_ms)

    def remove_last(self, key: bytes, time: int, count: int) -> None:
        """Delete up to `count` latest rows of a key at a time."""
        recent = self._recent or self._load_recent()
        for row_key in recent.remove_last(key, time, count):
            self.dirty[row_key] = (None, time)

    def _load_recent(self) -> RecentRows:
        # Not before the first record: until then the store may be under restore.
        self.clean.clear()
        self._has_all_rows = False
        self._recent = RecentRows(self)
        return self._recent

    def drop_write(self, key: bytes) -> None:
        super().drop_write(key)
        self._ungroup()
        if not self._indexed_count:
            return  # the time index of dirty rows is empty
        time = self._time_of(key)
        keys = self._fresh.get(time, {})
        if key not in keys:
            return
        del keys[key]
        self._indexed_count -= 1
        if not keys:
            del self._fresh[time]
            del self._times[bisect_left(self._times, time)]

    def _dirty_row_keys(self, key: bytes) -> Sequence[bytes]:
        """Return the row keys of a key's dirty rows, unordered."""
        by_key, size = self._dirty_by_key, self._layout.times_bytes
        # New keys are at the end of a dictionary.
        for row_key in islice(reversed(self.dirty), len(self.dirty) - self._grouped_count):
            by_key.setdefault(row_key[:-size], []).append(row_key)
        self._grouped_count = len(self.dirty)
        return by_key.get(key, ())

    def _index_fresh(self) -> None:
        new = len(self.dirty) - self._indexed_count
        if not new:
            return
        times = []
        # New keys are at the end of a dictionary.
        for key in islice(reversed(self.dirty), new):
            time = self._time_of(key)
            keys = self._fresh.get(time)
            if keys is None:
                times.append(time)
                keys = self._fresh[time] = {}
            keys[key] = None
        if len(times) == 1:
            insort(self._times, times[0])
        else:
            self._times.extend(times)
            self._times.sort()
        self._indexed_count = len(self.dirty)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        time_of = self._time_of
        for row in super().scan(start, end, reverse=reverse):
            if time_of(row[0]) >= self.horizon:
                yield row

    def scan_key(
        self, key: bytes, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield the rows of a key whose times are in a range, in the order of their times.

        Args:
            start: First encoded times of a row key, inclusive.
            end: Last encoded times, exclusive.
        """
        size = len(key) + self._layout.times_bytes
        dirty_keys = [k for k in self._dirty_keys(key + start, key + end) if len(k) == size]
        if reverse:
            dirty_keys.reverse()
        committed = self._committed.scan_key(key, start, end, reverse=reverse)
        time_of = self._time_of
        for row in self._merged(dirty_keys, committed, reverse):
            if time_of(row[0]) >= self.horizon:
                yield row

    def rows_of(self, key: bytes, start: bytes, end: bytes) -> list[tuple[bytes, tuple[int, Any]]]:
        """Return the rows of a key whose times are in a range, in order, expired rows included.

        Args:
            start: First encoded times of a row key, inclusive.
            end: Last encoded times, exclusive.

        Returns:
            The row key of each row, its timestamp, and its value in stored form.
        """
        rows = dict(self._committed_rows_of(key, start, end))
        low, high = key + start, key + end
        for row_key in self._dirty_row_keys(key):
            if low <= row_key < high:
                value, timestamp = self.dirty[row_key]
                rows[row_key] = timestamp, value
        return [row for row in sorted(rows.items()) if row[1][1] is not None]

    def _committed_rows_of(
        self, key: bytes, start: bytes, end: bytes
    ) -> Iterator[tuple[bytes, tuple[int, Any]]]:
        for row_key, stored in self._committed.scan_key(key, start, end):
            timestamp, data = decode_timestamped(stored)
            yield row_key, (timestamp, self._decode(data) if self.holds_objects else data)

    def cached_bytes(self) -> int:
        recent = self._recent
        if recent is None:
            return super().cached_bytes()
        return self._estimated(recent.count, recent.row_bytes)

    def shrink_cache(self, limit_bytes: int) -> None:
        if self._recent is None:
            super().shrink_cache(limit_bytes)
        else:
            self._recent.shrink(limit_bytes // self._sampled[1])

    def latest(self) -> int | None:
        """Return an upper bound of all rows' times, or None without rows."""
        on_disk = self._committed.latest()
        written = max(map(self._time_of, self.dirty), default=None)
        return max((time for time in (on_disk, written) if time is not None), default=None)

    def by_time(
        self, start_ms: int, end_ms: int, *, after: bytes = b""
    ) -> Iterator[tuple[int, bytes]]:
        """Yield time and key in order, after key `after` at `start_ms`; `end_ms` is exclusive.

        The keys are a snapshot; rows that are deleted during the iteration are skipped.
        """
        after = after if start_ms >= self.horizon else b""
        start_ms = max(start_ms, self.horizon)
        self._index_fresh()
        times = self._times[bisect_left(self._times, start_ms) : bisect_left(self._times, end_ms)]
        fresh = [(time, key) for time in times for key in sorted(self._fresh[time])]
        last = None
        if after:
            fresh = [entry for entry in fresh if entry > (start_ms, after)]
        begin = after + b"\x00" if after else b""
        for entry in merge(fresh, self._committed.by_time(start_ms, end_ms, begin)):
            if entry == last:
                continue
            last = entry
            if not self._is_deleted(entry[1]):
                yield entry

    def earliest(self, start_ms: int = 0) -> int | None:
        start_ms = max(start_ms, self.horizon)
        self._index_fresh()
        on_disk = (
            time
            for time, key in self._committed.by_time(start_ms, 2**63)
            if not self._is_deleted(key)
        )
        fresh = (
            time
            for time in islice(self._times, bisect_left(self._times, start_ms), None)
            if not all(map(self._is_deleted, self._fresh[time]))
        )
        times = [time for time in (next(on_disk, None), next(fresh, None)) if time is not None]
        return min(times, default=None)

    def last_time(self, start_ms: int) -> int | None:
        """Return the latest time of the rows from a time on; this reads all rows."""
        start_ms, time_of = max(start_ms, self.horizon), self._time_of
        on_disk = (time_of(key) for key, _ in self._committed.scan() if key not in self.dirty)
        written = (time_of(key) for key, (value, _) in self.dirty.items() if value is not None)
        return max((time for time in chain(on_disk, written) if time >= start_ms), default=None)

    def _is_deleted(self, key: bytes) -> bool:
        written = self.dirty.get(key)
        return written is not None and written[0] is None

    def oldest_written(self) -> int | None:
        """Return the earliest unexpired time among the dirty rows."""
        horizon = self.horizon
        unknown = islice(reversed(self.dirty), len(self.dirty) - self._indexed_count)
        oldest = min((t for t in map(self._time_of, unknown) if t >= horizon), default=None)
        index = bisect_left(self._times, horizon)
        if index == len(self._times):
            return oldest
        return self._times[index] if oldest is None else min(oldest, self._times[index])

    def expire(self, horizon: int) -> None:
        if horizon > self.horizon:  # called for each record; faster than `max`
            self.horizon = horizon

    def take_expired(self) -> Delta:
        """Return the next deletions of expired rows on disk, and drop these rows from `clean`."""
        if self._deleted_to >= self.horizon:
            return []
        expired = self._committed.expired(self._deleted_to, self.horizon, EXPIRED_PER_COMMIT)
        self._deleted_to, time_of = expired.to_ms, self._time_of
        row_keys = expired.row_keys
        if row_keys is None:
            row_keys = [key for key in self.clean if time_of(key) < expired.to_ms]
        if self.clean:
            for key in row_keys:
                self.clean.pop(key, None)
        return expired.deletions

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        expired = self.take_expired()
        # Readers of the files do not know the horizon, so an expired row must be up to date until
        # it is deleted. A row that is written later would never be deleted.
        rows = self._layout.rows(changes, from_ms=self._deleted_to, known=self.clean)
        if isinstance(expired, RangeDelta):
            expired.extend(rows)
            return expired
        return [*rows, *expired] if expired else rows

    def committed(self) -> None:
        if self._recent is None:
            super().committed()
        else:
            self._count_changes()
            self.dirty.clear()
            self._order.clear()
            self.clean.clear()  # rows that were read individually are not updated
        self._clear_indexes()

    def discard(self) -> None:
        super().discard()
        self._recent = None
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self._committed = self._view()
        self._fresh.clear()
        self._times.clear()
        self._indexed_count = 0
        self._ungroup()

    def _ungroup(self) -> None:
        if self._grouped_count:
            self._dirty_by_key.clear()
            self._grouped_count = 0


# Rows of keys by time.


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
    """Cache of the latest rows of a window store by key and time, because most records need them.

    They are the rows of a side of a stream-stream join, or the rows of sliding windows.

    Hot path: each record reads here. A RocksDB cursor costs more than everything else that is done
    for a record, and is created only for rows that are not in memory.

    Each key has a floor: all of its rows from that time on are in memory. Earlier rows are read
    from the store once, and then stay in memory. So a read returns the same rows as a scan of the
    store, in the same order. Values have the buffer's stored form: a mutable object is decoded for
    each read.

    Evicting a key raises only its own floor. If the floors of evicted keys take too much memory,
    the oldest are merged into the common floor, which applies to all other keys.

    An abort discards these rows with the task; they are read from the store again.

    Args:
        buffer: The rows; it changes them here, too.
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
