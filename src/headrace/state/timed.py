"""Buffer of a store's uncommitted rows with a time index and expiry by time.

Rows older than `horizon` are invisible to every reader, even while they are on disk. Each commit
deletes a limited number of them from disk, found by the time index. In the changelog they are
deleted by the topic's own retention. So an expired row costs no tombstone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Protocol

from headrace.state.buffer import ABSENT, Buffer, Coding, Entry
from headrace.state.codec import decode_timestamped, timestamped_rows
from headrace.state.layout import Layout, TimeIndexed, deletions_of, entry_time, row_key_of
from headrace.state.store import CommittedStore, Delta

EXPIRED_PER_COMMIT = 20_000
"""Maximum number of expired rows that a commit deletes from disk; the next commit continues."""


class RowCache(Protocol):
    """Alternative cache of rows that replaces `Buffer.clean`."""

    count: int
    """Number of cached rows, keys and evicted keys."""

    def invalidate(self, row_key: bytes) -> None:
        """Invalidate a row that was written without this cache."""

    def row_bytes(self) -> int:
        """Estimate the memory of a cached row, from some of the rows."""

    def shrink(self, entries: int) -> None:
        """Evict entries until at most `entries` remain."""


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
        "_indexed",
        "_indexed_count",
        "_layout",
        "_row_cache",
        "_time_of",
        "_times",
        "horizon",
    )

    def __init__(
        self, name: str, committed: CommittedStore, coding: Coding, *, layout: Layout
    ) -> None:
        assert layout.time_of is not None, name
        self._layout = layout
        self._row_cache: RowCache | None = None
        self._time_of = layout.time_of
        self._indexed = TimeIndexed(committed)
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
        super().__init__(name, self._indexed, coding)

    def get(self, key: bytes) -> Entry:
        return ABSENT if self._time_of(key) < self.horizon else super().get(key)

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        time = self._time_of(key)
        if time < self.horizon:
            return
        super().put(key, value, timestamp)
        if self._row_cache is not None:
            self._row_cache.invalidate(key)

    def put_unexpired(self, key: bytes, value: Any, timestamp: int) -> Any:
        """Write an unexpired row; return its stored form, to add to the `RowCache`."""
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        self.dirty[key] = (value, timestamp)
        return value

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

    def rows_of(self, key: bytes, start: bytes, end: bytes) -> list[tuple[bytes, tuple[int, Any]]]:
        """Return the rows of a key whose times are in a range, in order, expired rows included.

        Args:
            start: First encoded times of a row key, inclusive.
            end: Last encoded times, exclusive.

        Returns:
            The row key of each row, its timestamp, and its value in stored form.
        """
        rows: dict[bytes, tuple[int, Any]] = {}
        low, high = key + start, key + end
        for row_key, stored in self._indexed.scan(low, high):
            # A longer key may have rows between those of this one.
            if len(row_key) == len(low):
                timestamp, data = decode_timestamped(stored)
                rows[row_key] = timestamp, self._decode(data) if self.holds_objects else data
        for row_key in self._dirty_row_keys(key):
            if low <= row_key < high:
                value, timestamp = self.dirty[row_key]
                rows[row_key] = timestamp, value
        return [row for row in sorted(rows.items()) if row[1][1] is not None]

    def use_cache(self, cache: RowCache) -> None:
        """Cache committed rows in `cache` instead of `clean`."""
        self._row_cache = cache
        self.clean.clear()
        self._has_all_rows = False

    def cached_bytes(self) -> int:
        row_cache = self._row_cache
        if row_cache is None:
            return super().cached_bytes()
        return self._estimated(row_cache.count, row_cache.row_bytes)

    def shrink_cache(self, limit_bytes: int) -> None:
        if self._row_cache is None:
            super().shrink_cache(limit_bytes)
        else:
            self._row_cache.shrink(limit_bytes // self._sampled[1])

    def latest(self) -> int | None:
        """Return an upper bound of all rows' times, or None without rows."""
        on_disk = self._indexed.latest()
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
        for entry in merge(fresh, self._indexed.by_time(start_ms, end_ms, begin)):
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
            for time, key in self._indexed.by_time(start_ms, 2**63)
            if not self._is_deleted(key)
        )
        fresh = (
            time
            for time in islice(self._times, bisect_left(self._times, start_ms), None)
            if not all(map(self._is_deleted, self._fresh[time]))
        )
        times = [time for time in (next(on_disk, None), next(fresh, None)) if time is not None]
        return min(times, default=None)

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
        entries = self._indexed.expired(self._deleted_to, self.horizon, EXPIRED_PER_COMMIT)
        full = len(entries) == EXPIRED_PER_COMMIT
        self._deleted_to = entry_time(entries[-1]) if full else self.horizon
        if self.clean:
            for entry in entries:
                self.clean.pop(row_key_of(entry), None)
        return deletions_of(entries)

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        expired = self.take_expired()
        rows = self.not_yet_swept(timestamped_rows(changes))
        cached = self.clean.get
        # A row's time never changes, so a row on disk already has its index entry.
        indexed = (
            {key for key, _ in rows if (cached(key) or ABSENT)[0] is not None} if self.clean else ()
        )
        return [*self._layout.local(rows, indexed), *expired]

    def not_yet_swept(self, rows: Delta) -> Delta:
        """Return the rows at or after the time up to which expired rows are deleted.

        Readers of the files do not know the horizon, so an expired row must be up to date until it
        is deleted. A row that is written later would never be deleted.
        """
        time_of, swept_to = self._time_of, self._deleted_to
        return [row for row in rows if time_of(row[0]) >= swept_to] if swept_to > 0 else rows

    def committed(self) -> None:
        if self._row_cache is None:
            super().committed()
        else:
            self._count_changes()
            self.dirty.clear()
            self._order.clear()
            self.clean.clear()  # rows that were read individually are not updated
        self._clear_indexes()

    def discard(self) -> None:
        super().discard()
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self._fresh.clear()
        self._times.clear()
        self._indexed_count = 0
        self._ungroup()

    def _ungroup(self) -> None:
        if self._grouped_count:
            self._dirty_by_key.clear()
            self._grouped_count = 0
