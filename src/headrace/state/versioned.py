"""Buffer of a store's uncommitted rows with several versions of each key.

A version is kept while a read as of a time within the history can return it: it is deleted when a
newer version of its key is valid at the horizon. The last version of a key stays. Each commit
deletes a limited number of versions from disk. The changelog keeps them until it is compacted,
which its settings delay for as long as the history.

Compaction keeps the record written last, which is not always the last version. So whenever an older
version is written, the last version is written again after it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.state.buffer import ABSENT, Buffer, Coding, Entry
from headrace.state.codec import TIMESTAMP
from headrace.state.errors import ValueEncodingError
from headrace.state.layout import (
    LatestVersions,
    Versioned,
    index_entries,
    is_deletion,
    key_and_time,
    prefix,
)
from headrace.state.store import CommittedStore, Delta

IS_LATEST = -1
"""Result of `VersionedBuffer.put_version` for a version that is the last of its key."""
NOT_PUT = -(2**63)
"""Result of `VersionedBuffer.put_version` for a version that is older than the history."""

EXPIRED_PER_COMMIT = 20_000
"""Maximum number of versions that a commit reads to delete the versions that they replaced."""

_FOREVER = 2**63 - 2


class VersionedBuffer(Buffer):
    """`Buffer` by key and time.

    >>> from headrace.state.memory import MemoryTaskState
    >>> from headrace.state.spec import StoreSpec
    >>> committed = MemoryTaskState([StoreSpec("v", kind="memory", layout="versioned")]).store("v")
    >>> rows = VersionedBuffer("v", committed, Coding(encode=bytes, decode=bytes))
    >>> rows.put_version(b"k", b"new", 20), rows.put_version(b"k", b"old", 10)
    (-1, 20)
    >>> rows.get(b"k"), rows.get_as_of(b"k", 15), rows.get_as_of(b"k", 5)
    ((b'new', 20), (b'old', 10), (None, -1))
    """

    __slots__ = ("_fresh", "_latest", "_swept", "horizon")

    def __init__(self, name: str, committed: CommittedStore, coding: Coding) -> None:
        super().__init__(name, committed, coding)
        self._fresh: dict[bytes, list[int]] = {}
        """Times of the dirty versions of each key, sorted."""
        self._latest: dict[bytes, Entry] = {}
        """Cached last versions by key in stored form, deletions included."""
        self._swept = 0
        """Time up to which replaced versions have been deleted from disk."""
        self.horizon = 0
        """Earliest time of the history, in milliseconds."""

    def get(self, key: bytes) -> Entry:
        """Return the last version of a key, or `ABSENT`; its value is None after a deletion."""
        return self._decoded(self._last(key))

    def get_as_of(self, key: bytes, time: int) -> Entry:
        """Return the version valid at `time` (ms); before the horizon only a last version."""
        last = self._last(key)
        if last[1] <= time:
            return self._decoded(last)
        return ABSENT if time < self.horizon else self._decoded(self._find(key, time))

    def put_version(self, key: bytes, value: Any, time: int) -> int:
        """Write a version; return the time (ms) of the next version, `IS_LATEST` or `NOT_PUT`."""
        if time < self.horizon:
            return NOT_PUT
        last = self._last(key)
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        row_key = prefix(key) + TIMESTAMP.pack(time)
        if row_key not in self.dirty:
            insort(self._fresh.setdefault(key, []), time)
        self.dirty[row_key] = (value, time)
        if time < last[1]:
            return self._next(key, time)
        self._latest[key] = (value, time)
        return IS_LATEST

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        self.put_version(key, value, timestamp)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        dirty_keys = sorted(
            (
                key
                for key in self._fresh
                if (start is None or key >= start) and (end is None or key < end)
            ),
            reverse=reverse,
        )
        committed = LatestVersions(self._committed).scan(start, end, reverse=reverse)
        return self._merged(dirty_keys, committed, reverse)

    def _row(self, key: bytes) -> Iterator[tuple[bytes, Any, int]]:
        value, time = self.get(key)
        if value is not None:
            yield key, value, time

    # -- the commit --------------------------------------------------------------------------

    def delta(self) -> list[tuple[bytes, bytes | None, int]]:
        """Encode the dirty versions of each key by time, followed by the key's last version."""
        changes = []
        for key, times in self._fresh.items():
            start, last = prefix(key), self._last(key)
            versions = [self.dirty[start + TIMESTAMP.pack(time)] for time in times]
            if times[-1] < last[1]:
                versions.append(last)
            for value, time in versions:
                try:
                    changes.append((key, None if value is None else self._bytes(value), time))
                except Exception as error:
                    raise ValueEncodingError(self.name, key, error) from error
        return changes

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        deletions = self._replaced_versions()
        if self._fresh:
            # Versions written now may replace others, so read them again later.
            self._swept = min(self._swept, *(times[0] for times in self._fresh.values()))
        return [*deletions, *Versioned().rows(changes)]

    def _replaced_versions(self) -> Delta:
        """Return the deletions of the next versions on disk that no read can return."""
        if self._swept > self.horizon:
            return []
        entries = list(
            islice(
                index_entries(self._committed, self._swept, self.horizon + 1), EXPIRED_PER_COMMIT
            )
        )
        full = len(entries) == EXPIRED_PER_COMMIT
        self._swept = entries[-1][1] if full else self.horizon + 1
        rows: list[tuple[bytes, bytes | None]] = [(entry, None) for entry, _, _ in entries]
        for key in dict.fromkeys(key for _, _, key in entries):
            start = prefix(key)
            end = start + TIMESTAMP.pack(self.horizon + 1)
            old = list(self._committed.scan(start, end, reverse=True))
            kept = 0 if old and self._is_redundant_deletion(key, *old[0]) else 1
            rows.extend((row_key, None) for row_key, _ in old[kept:])
        return rows

    def _is_redundant_deletion(self, key: bytes, row_key: bytes, row: bytes) -> bool:
        """Return whether a version is a deletion without an older uncommitted version."""
        times = self._fresh.get(key)
        return is_deletion(row) and (not times or times[0] > key_and_time(row_key)[1])

    def detect_empty_store(self) -> None:
        """Do nothing: rows are never cached in `clean`."""

    def expire(self, horizon: int) -> None:
        self.horizon = max(self.horizon, horizon)

    def committed(self) -> None:
        self._changed += len(self.dirty)
        self.dirty.clear()
        self._fresh.clear()

    @property
    def _cache(self) -> dict[bytes, Entry]:
        return self._latest

    def discard(self) -> None:
        super().discard()
        self._fresh.clear()
        self._latest.clear()

    # -- finding versions ----------------------------------------------------------------------

    def _last(self, key: bytes) -> Entry:
        latest = self._latest.get(key)
        if latest is None:
            latest = self._latest[key] = self._find(key, _FOREVER)
        return latest

    def _find(self, key: bytes, time: int) -> Entry:
        start = prefix(key)
        times = self._fresh.get(key, ())
        position = bisect_right(times, time)
        fresh = times[position - 1] if position else -1
        end = start + TIMESTAMP.pack(time + 1)
        for row_key, row in self._committed.scan(start, end, reverse=True):
            since = key_and_time(row_key)[1]
            if since <= fresh:
                break
            if is_deletion(row):
                return None, since
            return (self._decode(row[1:]) if self.holds_objects else row[1:]), since
        return self.dirty[start + TIMESTAMP.pack(fresh)] if position else ABSENT

    def _next(self, key: bytes, time: int) -> int:
        """Return the time of the first version after `time`, which must exist."""
        start = prefix(key)
        times = self._fresh.get(key, ())
        position = bisect_right(times, time)
        fresh = times[position] if position < len(times) else _FOREVER
        after = start + TIMESTAMP.pack(time + 1)
        for row_key, _ in self._committed.scan(after, start + TIMESTAMP.pack(_FOREVER)):
            return min(fresh, key_and_time(row_key)[1])
        return fresh
