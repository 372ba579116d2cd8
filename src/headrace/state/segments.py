"""Layout of window and session rows in segments of time, as in Kafka Streams' segmented stores.

    row    segment (8)  key  times

The number of a row's segment is its time divided by the length of a segment. Within a segment, rows
are ordered by key, then by time. There is no index by time: rows expire together with their
segment, by one deletion of a key range. So a row stays on disk for up to a segment longer than the
retention, and three or four segments exist at a time.

A read of a key reads only the segments of its range of times. A read of all keys merges the
segments. A read in the order of time reads all keys of a segment and sorts up to `SORTED_ROWS` of
them in memory, so it is meant for rare reads; a store that is often read in that order has an index
by time instead (`headrace.state.layout.TimeIndexed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge, nsmallest
from itertools import chain, islice

from headrace.state.buffer import Entry
from headrace.state.codec import TIMESTAMP
from headrace.state.layout import (
    LAYOUTS,
    NO_ROWS,
    Change,
    Changes,
    Expired,
    Layout,
    LayoutName,
    TimedRows,
    records_of,
)
from headrace.state.store import CommittedStore, Delta, RangeDelta

SEGMENT_MIN_MS = 60_000
"""Minimum length of a segment in milliseconds, as in Kafka Streams."""
SINGLE_SEGMENT_MS = 2**63
"""Length of the only segment of a store whose rows never expire."""
SORTED_ROWS = 100_000
"""Maximum number of keys that are sorted at a time: some 15 MB."""
_LATEST_READ_ROWS = 500_000
"""Maximum number of rows that `latest` reads; about half a second."""
_TIME_MAX_MS = 2**62
"""No row has a later time; the only segment of a store without expiry ends later."""
_PREFIX_BYTES = TIMESTAMP.size
_PACK, _UNPACK = TIMESTAMP.pack, TIMESTAMP.unpack_from
_AT = "@"
"""Separator before the length of segments in a name on disk; names of stores do not contain it."""


def disk_name_of(name: str, segment_ms: int | None) -> str:
    return name if segment_ms is None else f"{name}{_AT}{segment_ms}"


def segment_ms_in(name: str, disk_name: str) -> int | None:
    """Return the length of segments in a name on disk; raise ValueError for another store's name.

    >>> segment_ms_in("w", "w"), segment_ms_in("w", "w@60000")
    (None, 60000)
    """
    if disk_name == name:
        return None
    own, _, segment_ms = disk_name.rpartition(_AT)
    if own != name:
        raise ValueError(f"{disk_name} is not a name of store {name}")
    return int(segment_ms)


def segment_ms_of(retention_ms: int | None) -> int:
    """Return the length of a segment for a retention; None keeps rows forever.

    >>> segment_ms_of(86_400_000), segment_ms_of(1_000)
    (43200000, 60000)
    """
    if retention_ms is None:
        return SINGLE_SEGMENT_MS
    return max(retention_ms // 2, SEGMENT_MIN_MS)


@lru_cache
def layout_of(name: LayoutName, segment_ms: int | None) -> Layout:
    """Return a layout; a length of segments is only for stores of windows and sessions."""
    layout = LAYOUTS[name]
    if segment_ms is None:
        return layout
    assert layout.time_of is not None, name
    return SegmentedLayout(layout.time_of, layout.times_bytes, segment_ms)


@dataclass(frozen=True, slots=True)
class SegmentedLayout:
    """`Layout` with segments; see the module."""

    time_of: Callable[[bytes], int]
    times_bytes: int
    segment_ms: int

    def rows(
        self,
        changes: Changes,
        *,
        from_ms: int = 0,
        known: Mapping[bytes, Entry] = NO_ROWS,  # noqa: ARG002
    ) -> Delta:
        # Hot path of the commit: without calls of `time_of`.
        pack, unpack, size, segment_ms = _PACK, _UNPACK, self.times_bytes, self.segment_ms
        return [
            (
                pack(time // segment_ms) + key,
                None if value is None else pack(timestamp) + value,
            )
            for key, value, timestamp in changes
            if (time := unpack(key, len(key) - size)[0]) >= from_ms
        ]

    def view(self, committed: CommittedStore) -> TimedRows:
        return Segments(committed, self)

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        return records_of(self.view(committed))


class Segments:
    """Committed rows of a store that has segments.

    The list of segments is read once: create a new object after the committed rows have changed.

    >>> from headrace.state.memory import MemoryTaskState
    >>> from headrace.state.spec import StoreSpec
    >>> spec = StoreSpec("w", layout="window", retention_ms=120_000, segmented=True)
    >>> layout, state = spec.rows, MemoryTaskState([spec])
    >>> keys = [b"k" + TIMESTAMP.pack(time) + bytes(4) for time in (5, 70_000)]
    >>> state.write({"w": layout.rows([(key, b"row", 7) for key in keys])}, {})
    >>> rows = layout.view(state.store("w"))
    >>> rows.get(keys[1])[8:], [time for time, _ in rows.by_time(0, 2**63)]
    (b'row', [5, 70000])
    >>> state.write({"w": rows.expired(0, 65_000, 100).deletions}, {})
    >>> [key == keys[1] for key, _ in layout.view(state.store("w")).scan()]
    [True]
    """

    __slots__ = ("_committed", "_layout", "_numbers")

    def __init__(self, committed: CommittedStore, layout: SegmentedLayout) -> None:
        self._committed = committed
        self._layout = layout
        self._numbers: list[int] | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._committed.get(self._disk_key(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._committed.get_many([self._disk_key(key) for key in keys])

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        scans = [
            self._scan_segment(number, start, end, reverse=reverse) for number in self._segments()
        ]
        # No two rows have the same key.
        return scans[0] if len(scans) == 1 else merge(*scans, reverse=reverse)

    def scan_key(
        self, key: bytes, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        segment_ms = self._layout.segment_ms
        first, last = (int.from_bytes(times[:8], "big") // segment_ms for times in (start, end))
        numbers = [number for number in self._segments() if first <= number <= last]
        low, high = key + start, key + end
        # The rows of a key are in the order of their segments.
        scans = [
            self._scan_segment(number, low, high, reverse=reverse)
            for number in (reversed(numbers) if reverse else numbers)
        ]
        size = len(key) + self._layout.times_bytes
        return (row for row in chain.from_iterable(scans) if len(row[0]) == size)

    def by_time(
        self, start_ms: int, end_ms: int, begin: bytes = b""
    ) -> Iterator[tuple[int, bytes]]:
        """Yield time and key in order; `end_ms` is exclusive, `begin` is a key at `start_ms`."""
        segment_ms, high = self._layout.segment_ms, (end_ms, b"")
        for number in self._segments():
            if number < start_ms // segment_ms or number * segment_ms >= end_ms:
                continue
            low: tuple[int, bytes] | None = (start_ms, begin)
            while low is not None:
                entries = self._first_entries(number, low, high)
                yield from entries
                is_last = len(entries) < SORTED_ROWS
                low = None if is_last else (entries[-1][0], entries[-1][1] + b"\0")

    def _first_entries(
        self, number: int, low: tuple[int, bytes], high: tuple[int, bytes]
    ) -> list[tuple[int, bytes]]:
        """Return up to `SORTED_ROWS` first times and keys of a segment's rows within bounds."""
        time_of = self._layout.time_of
        entries = ((time_of(key), key) for key, _ in self._scan_segment(number))
        return nsmallest(SORTED_ROWS, (entry for entry in entries if low <= entry < high))

    def latest(self) -> int | None:
        """Return an upper bound of all times, which is exact if the last segment is small."""
        numbers = self._segments()
        if not numbers:
            return None
        rows = self._scan_segment(numbers[-1])
        latest = max(
            (self._layout.time_of(key) for key, _ in islice(rows, _LATEST_READ_ROWS)), default=None
        )
        if next(rows, None) is None:
            return latest
        return min((numbers[-1] + 1) * self._layout.segment_ms - 1, _TIME_MAX_MS)

    def expired(self, start_ms: int, horizon_ms: int, most: int) -> Expired:  # noqa: ARG002
        segment_ms = self._layout.segment_ms
        first, number = start_ms // segment_ms, horizon_ms // segment_ms
        if number <= first:
            return Expired(start_ms, [], ())
        begin = TIMESTAMP.pack(first) if start_ms > 0 else b""
        return Expired(number * segment_ms, RangeDelta(begin, TIMESTAMP.pack(number)), None)

    def approximate_count(self) -> int:
        return self._committed.approximate_count()

    def approximate_bytes(self) -> int:
        return self._committed.approximate_bytes()

    def _disk_key(self, key: bytes) -> bytes:
        return TIMESTAMP.pack(self._layout.time_of(key) // self._layout.segment_ms) + key

    def _segments(self) -> list[int]:
        """Return the numbers of the segments that have rows, in order."""
        numbers = self._numbers
        if numbers is None:
            numbers = self._numbers = []
            start = b""
            while (row := next(self._committed.scan(start), None)) is not None:
                number: int = TIMESTAMP.unpack_from(row[0])[0]
                numbers.append(number)
                start = TIMESTAMP.pack(number + 1)
        return numbers

    def _scan_segment(
        self,
        number: int,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        prefix = TIMESTAMP.pack(number)
        low = prefix if start is None else prefix + start
        high = TIMESTAMP.pack(number + 1) if end is None else prefix + end
        rows = self._committed.scan(low, high, reverse=reverse)
        return ((key[_PREFIX_BYTES:], row) for key, row in rows)
