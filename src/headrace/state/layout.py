"""Format of rows on disk and in the changelog, for each kind of store; pure functions.

    plain      the row's key                              the same in the changelog
    window     key  start (8)  sequence (4)               the same in the changelog
    session    key  end (8)  start (8)                    the same in the changelog
    versioned  see below                                  the key, several times

The keys of window and session stores have Kafka Streams' format. There are two formats on disk.
With segments, a row's key is prefixed with the number of its segment (`headrace.state.segments`).
With an index by time, it is prefixed with a byte 0, and each row has an entry in the index: a byte
1, the time, the row's key.

Versioned stores:

    changelog    key                         value, or null for a deletion; the record's time
    row          0  key, escaped  time (8)   1 value, or 0 for a deletion
    index        1  time (8)  key            nothing

A version is valid from its time until the time of the next version. The changelog has Kafka
Streams' format, with several records per key. Escaped keys sort like the keys, and no escaped key
is a prefix of another, so all versions of a key are adjacent and sorted by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple, Protocol

from headrace.state.buffer import ABSENT, Entry
from headrace.state.codec import (
    TIMESTAMP,
    decode_timestamped,
    encode_timestamped,
    timestamped_rows,
)
from headrace.state.store import CommittedStore, Delta

LayoutName = Literal["plain", "window", "session", "versioned"]
Change = tuple[bytes, bytes | None, int]
"""Key, value or None, and timestamp, as in the changelog."""

Changes = Sequence[Change]
NO_ROWS: Mapping[bytes, Entry] = {}

_LAYOUT_PREFIX = b"layout/"

TIMES_BYTES: Mapping[LayoutName, int] = {
    "plain": 0,
    "window": TIMESTAMP.size + 4,
    "session": 2 * TIMESTAMP.size,
    "versioned": 0,
}
"""Number of bytes that a layout appends to the key of a row."""
_ROW = b"\x00"
_INDEX = b"\x01"
_AFTER = b"\x02"
_WINDOW_SUFFIX_BYTES = TIMES_BYTES["window"]
_SESSION_SUFFIX_BYTES = TIMES_BYTES["session"]


def window_start(row_key: bytes) -> int:
    """Return the window start, in milliseconds, from a row key of a window store."""
    start: int = TIMESTAMP.unpack_from(row_key, len(row_key) - _WINDOW_SUFFIX_BYTES)[0]
    return start


def session_end(row_key: bytes) -> int:
    """Return the session end, in milliseconds, from a row key of a session store."""
    end: int = TIMESTAMP.unpack_from(row_key, len(row_key) - _SESSION_SUFFIX_BYTES)[0]
    return end


class Expired(NamedTuple):
    """Deletion of expired rows on disk.

    Args:
        to_ms: time before which no row remains on disk after the deletion.
        deletions: the deletions.
        row_keys: the keys of the deleted rows; None if they are not known.
    """

    to_ms: int
    deletions: Delta
    row_keys: Sequence[bytes] | None


class TimedRows(CommittedStore, Protocol):
    """Committed rows of a window or session store, by row key."""

    def scan_key(
        self, key: bytes, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a key whose times are in a range, in the order of their times.

        Args:
            start: First encoded times of a row key, inclusive.
            end: Last encoded times, exclusive.
        """

    def by_time(
        self, start_ms: int, end_ms: int, begin: bytes = b""
    ) -> Iterator[tuple[int, bytes]]:
        """Yield time and key in order; `end_ms` is exclusive, `begin` is a key at `start_ms`."""

    def latest(self) -> int | None:
        """Return an upper bound of all times, or None without rows."""

    def expired(self, start_ms: int, horizon_ms: int, most: int) -> Expired:
        """Return the next deletion of rows with `start_ms` <= time < `horizon_ms`.

        Args:
            most: Maximum number of rows that are deleted one by one.
        """


class Layout(Protocol):
    """Conversion between the rows of a kind of store, its on-disk format and its changelog."""

    @property
    def time_of(self) -> Callable[[bytes], int] | None:
        """Function that returns the expiry time of a row key; None if rows never expire."""

    @property
    def times_bytes(self) -> int:
        """Number of bytes that follow the key in a row key."""

    def rows(
        self, changes: Changes, *, from_ms: int = 0, known: Mapping[bytes, Entry] = NO_ROWS
    ) -> Delta:
        """Return the rows to write to disk for changelog records.

        Args:
            changes: the records.
            from_ms: time of the earliest row to write; only for layouts with times.
            known: rows that are on disk, or whose value is None; any others may be, too.
        """

    def view(self, committed: CommittedStore) -> CommittedStore:
        """Return the store's rows by row key, with Kafka Streams' format of values."""

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        """Yield changelog records from which `rows` restores the rows on disk."""


def records_of(rows: CommittedStore) -> Iterator[Change]:
    for key, row in rows.scan():
        timestamp, value = decode_timestamped(row)
        yield key, value, timestamp


@dataclass(frozen=True, slots=True)
class _Plain:
    time_of: Callable[[bytes], int] | None = field(default=None, init=False)
    times_bytes: int = field(default=TIMES_BYTES["plain"], init=False)

    def rows(
        self,
        changes: Changes,
        *,
        from_ms: int = 0,  # noqa: ARG002
        known: Mapping[bytes, Entry] = NO_ROWS,  # noqa: ARG002
    ) -> Delta:
        return timestamped_rows(changes)

    def view(self, committed: CommittedStore) -> CommittedStore:
        return committed

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        return records_of(committed)


@dataclass(frozen=True, slots=True)
class _TimedLayout:
    time_of: Callable[[bytes], int]
    times_bytes: int
    """Number of bytes that follow the key in a row key; the expiry time is first."""

    def rows(
        self, changes: Changes, *, from_ms: int = 0, known: Mapping[bytes, Entry] = NO_ROWS
    ) -> Delta:
        begin = -self.times_bytes
        end = begin + TIMESTAMP.size
        first, pack = TIMESTAMP.pack(from_ms), TIMESTAMP.pack
        rows: list[tuple[bytes, bytes | None]] = []
        add = rows.append
        for key, value, timestamp in changes:
            time = key[begin:end]
            if time < first:
                continue
            add((_ROW + key, None if value is None else pack(timestamp) + value))
            if value is None:
                add((_INDEX + time + key, None))
            elif (known.get(key) or ABSENT)[0] is None:
                # A row's time never changes, so a row on disk already has its index entry.
                add((_INDEX + time + key, b""))
        return rows

    def view(self, committed: CommittedStore) -> TimedRows:
        return TimeIndexed(committed, self.times_bytes)

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        return records_of(self.view(committed))


def _entry_time(entry: bytes) -> int:
    """Return the time of an index entry, in milliseconds."""
    time: int = TIMESTAMP.unpack_from(entry, 1)[0]
    return time


# Versions of rows.


_VALUE = b"\x01"
_DELETION = b"\x00"
_END = b"\x00\x00"
_ZERO, _ESCAPED_ZERO = b"\x00", b"\x00\xff"
_INDEX_SIZE = 1 + TIMESTAMP.size


def prefix(key: bytes) -> bytes:
    """Return the prefix of all rows of a key on disk, which no other key's rows have.

    >>> prefix(b"a") < prefix(b"a" + bytes(1)) < prefix(b"aa") < prefix(b"b")
    True
    """
    return _ROW + key.replace(_ZERO, _ESCAPED_ZERO) + _END


def key_and_time(row_key: bytes) -> tuple[bytes, int]:
    r"""Return the key of a version's row, and the time from which it is valid.

    >>> key_and_time(prefix(b"a" + bytes(2)) + TIMESTAMP.pack(5))
    (b'a\x00\x00', 5)
    """
    escaped = row_key[1 : -TIMESTAMP.size - len(_END)]
    time: int = TIMESTAMP.unpack_from(row_key, len(row_key) - TIMESTAMP.size)[0]
    return escaped.replace(_ESCAPED_ZERO, _ZERO), time


def is_deletion(row: bytes) -> bool:
    return row[:1] == _DELETION


def index_entries(
    committed: CommittedStore, start_ms: int, end_ms: int
) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield entry, time and key of the versions with `start_ms` <= time < `end_ms`, by time."""
    low, high = _INDEX + TIMESTAMP.pack(max(start_ms, 0)), _INDEX + TIMESTAMP.pack(end_ms)
    for entry, _ in committed.scan(low, high):
        yield entry, TIMESTAMP.unpack_from(entry, 1)[0], entry[_INDEX_SIZE:]


@dataclass(frozen=True, slots=True)
class Versioned:
    """Layout of versioned stores; see the module."""

    time_of: Callable[[bytes], int] | None = field(default=None, init=False)
    times_bytes: int = field(default=TIMES_BYTES["versioned"], init=False)

    def rows(
        self,
        changes: Changes,
        *,
        from_ms: int = 0,  # noqa: ARG002
        known: Mapping[bytes, Entry] = NO_ROWS,  # noqa: ARG002
    ) -> Delta:
        pack = TIMESTAMP.pack
        rows: list[tuple[bytes, bytes | None]] = []
        for key, value, time in changes:
            rows.append((prefix(key) + pack(time), _DELETION if value is None else _VALUE + value))
            rows.append((_INDEX + pack(time) + key, b""))
        return rows

    def view(self, committed: CommittedStore) -> CommittedStore:
        return LatestVersions(committed)

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        """Yield the versions of each key by time, so that its last version comes last."""
        for row_key, row in committed.scan(_ROW, _INDEX):
            key, time = key_and_time(row_key)
            yield key, None if is_deletion(row) else row[1:], time


class LatestVersions:
    """Committed rows of a versioned store in the format of a plain store: the last version of each
    key.

    >>> from headrace.state.memory import MemoryTaskState
    >>> from headrace.state.spec import StoreSpec
    >>> state = MemoryTaskState([StoreSpec("v", kind="memory", layout="versioned")])
    >>> changes = [(b"k", b"old", 5), (b"k", b"new", 7), (b"gone", b"x", 5), (b"gone", None, 7)]
    >>> state.write({"v": Versioned().rows(changes)}, {})
    >>> [(key, row[8:]) for key, row in LatestVersions(state.store("v")).scan()]
    [(b'k', b'new')]
    """

    __slots__ = ("_committed",)

    def __init__(self, committed: CommittedStore) -> None:
        self._committed = committed

    def get(self, key: bytes) -> bytes | None:
        start = prefix(key)
        end = start + TIMESTAMP.pack(2**63 - 1)
        for row_key, row in self._committed.scan(start, end, reverse=True):
            return _timestamped(row_key, row)
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        low = _ROW if start is None else prefix(start)
        high = _INDEX if end is None else prefix(end)
        rows = self._committed.scan(low, high, reverse=reverse)
        for key, versions in groupby(rows, lambda row: key_and_time(row[0])[0]):
            first, *rest = versions
            row = _timestamped(*(first if reverse or not rest else rest[-1]))
            if row is not None:
                yield key, row

    def approximate_count(self) -> int:
        """Return half of the number of rows on disk, which count all versions and index entries."""
        return self._committed.approximate_count() // 2

    def approximate_bytes(self) -> int:
        return self._committed.approximate_bytes()


def _timestamped(row_key: bytes, row: bytes) -> bytes | None:
    if is_deletion(row):
        return None
    return encode_timestamped(key_and_time(row_key)[1], row[1:])


LAYOUTS: Mapping[LayoutName, Layout] = {
    "plain": _Plain(),
    "window": _TimedLayout(window_start, _WINDOW_SUFFIX_BYTES),
    "session": _TimedLayout(session_end, _SESSION_SUFFIX_BYTES),
    "versioned": Versioned(),
}


def write_layouts(db: Any, layouts: Mapping[str, LayoutName]) -> None:
    """Store layout names in RocksDB's default column family, for readers in other processes."""
    for name, layout in layouts.items():
        if read_layout(db, name) != layout:
            db[_LAYOUT_PREFIX + name.encode()] = layout.encode()


def read_layout(db: Any, name: str) -> str | None:
    """Return the stored layout name; None for files of older releases."""
    stored_layout: bytes | None = db.get(_LAYOUT_PREFIX + name.encode())
    return None if stored_layout is None else stored_layout.decode(errors="replace")


class TimeIndexed:
    """Committed rows of a store that has an index by time.

    >>> from headrace.state.memory import MemoryTaskState
    >>> from headrace.state.spec import StoreSpec
    >>> state = MemoryTaskState([StoreSpec("w", kind="memory", layout="window")])
    >>> key = b"k" + TIMESTAMP.pack(5) + bytes(4)
    >>> state.write({"w": LAYOUTS["window"].rows([(key, b"row", 7)])}, {})
    >>> rows = LAYOUTS["window"].view(state.store("w"))
    >>> rows.get(key)[8:], [(time, row_key == key) for time, row_key in rows.by_time(0, 6)]
    (b'row', [(5, True)])
    """

    __slots__ = ("_committed", "_times_bytes")

    def __init__(self, committed: CommittedStore, times_bytes: int) -> None:
        self._committed = committed
        self._times_bytes = times_bytes

    def get(self, key: bytes) -> bytes | None:
        return self._committed.get(_ROW + key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._committed.get_many([_ROW + key for key in keys])

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        low = _ROW if start is None else _ROW + start
        high = _INDEX if end is None else _ROW + end
        for key, row in self._committed.scan(low, high, reverse=reverse):
            yield key[1:], row

    def scan_key(
        self, key: bytes, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        size = len(key) + self._times_bytes
        # A longer key may have rows between those of this one.
        rows = self.scan(key + start, key + end, reverse=reverse)
        return (row for row in rows if len(row[0]) == size)

    def approximate_count(self) -> int:
        return self._committed.approximate_count() // 2

    def approximate_bytes(self) -> int:
        return self._committed.approximate_bytes()

    def expired(self, start_ms: int, horizon_ms: int, most: int) -> Expired:
        low, high = (_INDEX + TIMESTAMP.pack(max(time, 0)) for time in (start_ms, horizon_ms))
        entries = [key for key, _ in islice(self._committed.scan(low, high), most)]
        row_keys = [entry[_INDEX_SIZE:] for entry in entries]
        deletions: list[tuple[bytes, bytes | None]] = []
        for entry, row_key in zip(entries, row_keys, strict=True):
            deletions += ((_ROW + row_key, None), (entry, None))
        to_ms = _entry_time(entries[-1]) if len(entries) == most else horizon_ms
        return Expired(to_ms, deletions, row_keys)

    def by_time(
        self, start_ms: int, end_ms: int, begin: bytes = b""
    ) -> Iterator[tuple[int, bytes]]:
        low = _INDEX + TIMESTAMP.pack(max(start_ms, 0)) + begin
        high = _INDEX + TIMESTAMP.pack(end_ms) if end_ms < 2**63 else _AFTER
        for key, _ in self._committed.scan(low, high):
            yield _entry_time(key), key[_INDEX_SIZE:]

    def latest(self) -> int | None:
        last = next(self._committed.scan(_INDEX, _AFTER, reverse=True), None)
        return None if last is None else _entry_time(last[0])
