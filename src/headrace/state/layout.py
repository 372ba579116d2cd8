"""Format of rows on disk and in the changelog, for each kind of store; pure functions.

    plain      the row's key                              the same in the changelog
    window     key  start (8)  sequence (4)               the same in the changelog
    session    key  end (8)  start (8)                    the same in the changelog
    versioned  see `headrace.state.versions`              the key, several times

The keys of window and session stores have Kafka Streams' format. On disk they are prefixed with a
byte 0, and each row has an entry in an index by time: a byte 1, the time, the row's key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

from headrace.state.codec import TIMESTAMP, decode_timestamped, timestamped_rows
from headrace.state.store import CommittedStore, Delta
from headrace.state.versions import Versioned

LayoutName = Literal["plain", "window", "session", "versioned"]
Change = tuple[bytes, bytes | None, int]
"""Key, value or None, and timestamp, as in the changelog."""

Changes = Sequence[Change]

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


class Layout(Protocol):
    """Conversion between the rows of a kind of store, its on-disk format and its changelog."""

    @property
    def time_of(self) -> Callable[[bytes], int] | None:
        """Function that returns the expiry time of a row key; None if rows never expire."""

    def local(self, rows: Delta, indexed: Collection[bytes] = ()) -> Delta:
        """Return the rows to write to disk for rows of the store.

        Args:
            indexed: The keys of rows that are already on disk.
        """

    def rows(self, changes: Changes) -> Delta:
        """Return the rows to write to disk for changelog records."""

    def view(self, committed: CommittedStore) -> CommittedStore:
        """Return the store's rows in the format that `local` accepts."""

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        """Yield changelog records from which `rows` restores the rows on disk."""


def _records(rows: CommittedStore) -> Iterator[Change]:
    for key, row in rows.scan():
        timestamp, value = decode_timestamped(row)
        yield key, value, timestamp


@dataclass(frozen=True, slots=True)
class _Plain:
    time_of: Callable[[bytes], int] | None = field(default=None, init=False)

    def local(self, rows: Delta, indexed: Collection[bytes] = ()) -> Delta:  # noqa: ARG002
        return rows

    def rows(self, changes: Changes) -> Delta:
        return timestamped_rows(changes)

    def view(self, committed: CommittedStore) -> CommittedStore:
        return committed

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        return _records(committed)


@dataclass(frozen=True, slots=True)
class _TimedLayout:
    time_of: Callable[[bytes], int]
    time_from_end: int
    """Distance of the time from the end of a row key, in bytes."""

    def local(self, rows: Delta, indexed: Collection[bytes] = ()) -> Delta:
        begin = -self.time_from_end
        end = begin + TIMESTAMP.size
        local: list[tuple[bytes, bytes | None]] = []
        for key, row in rows:
            local.append((_ROW + key, row))
            if row is None or key not in indexed:
                local.append((_INDEX + key[begin:end] + key, None if row is None else b""))
        return local

    def rows(self, changes: Changes) -> Delta:
        return self.local(timestamped_rows(changes))

    def view(self, committed: CommittedStore) -> CommittedStore:
        return TimeIndexed(committed)

    def changes(self, committed: CommittedStore) -> Iterator[Change]:
        return _records(TimeIndexed(committed))


def entry_time(entry: bytes) -> int:
    """Return the time of an index entry, in milliseconds."""
    time: int = TIMESTAMP.unpack_from(entry, 1)[0]
    return time


def without(entries: Iterable[bytes]) -> list[tuple[bytes, None]]:
    """Return the deletions of rows and of their index entries."""
    begin = len(_INDEX) + TIMESTAMP.size
    deleted: list[tuple[bytes, None]] = []
    for entry in entries:
        deleted.append((_ROW + entry[begin:], None))
        deleted.append((entry, None))
    return deleted


def row_key_of(entry: bytes) -> bytes:
    return entry[len(_INDEX) + TIMESTAMP.size :]


LAYOUTS: Mapping[LayoutName, Layout] = {
    "plain": _Plain(),
    "window": _TimedLayout(window_start, _WINDOW_SUFFIX_BYTES),
    "session": _TimedLayout(session_end, _SESSION_SUFFIX_BYTES),
    "versioned": Versioned(),
}


def note_layouts(notes: Any, layouts: Mapping[str, LayoutName]) -> None:
    """Store layout names in RocksDB's default column family, for readers in other processes."""
    for name, layout in layouts.items():
        if noted_layout(notes, name) != layout:
            notes[_LAYOUT_PREFIX + name.encode()] = layout.encode()


def noted_layout(notes: Any, name: str) -> str | None:
    """Return the stored layout name; None for files of older releases."""
    found: bytes | None = notes.get(_LAYOUT_PREFIX + name.encode())
    return None if found is None else found.decode(errors="replace")


class TimeIndexed:
    """Committed rows of a store that has an index by time.

    >>> from headrace.state.memory import MemoryTaskState
    >>> from headrace.state.spec import StoreSpec
    >>> state = MemoryTaskState([StoreSpec("w", kind="memory", layout="window")])
    >>> key = b"k" + TIMESTAMP.pack(5) + bytes(4)
    >>> state.write({"w": LAYOUTS["window"].local([(key, b"row")])}, {})
    >>> rows = TimeIndexed(state.store("w"))
    >>> rows.get(key), [(time, found == key) for time, found in rows.by_time(0, 6)]
    (b'row', [(5, True)])
    """

    __slots__ = ("_committed",)

    def __init__(self, committed: CommittedStore) -> None:
        self._committed = committed

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

    def approximate_count(self) -> int:
        return self._committed.approximate_count() // 2

    def approximate_bytes(self) -> int:
        return self._committed.approximate_bytes()

    def expired(self, start_ms: int, end_ms: int, most: int) -> list[bytes]:
        """Return up to `most` index entries with `start_ms` <= time < `end_ms`, earliest first."""
        low, high = (_INDEX + TIMESTAMP.pack(max(time, 0)) for time in (start_ms, end_ms))
        return [key for key, _ in islice(self._committed.scan(low, high), most)]

    def by_time(
        self, start_ms: int, end_ms: int, begin: bytes = b""
    ) -> Iterator[tuple[int, bytes]]:
        """Yield time and key in order; `end_ms` is exclusive, `begin` is a key at `start_ms`."""
        size = 1 + TIMESTAMP.size
        low = _INDEX + TIMESTAMP.pack(max(start_ms, 0)) + begin
        high = _INDEX + TIMESTAMP.pack(end_ms) if end_ms < 2**63 else _AFTER
        for key, _ in self._committed.scan(low, high):
            yield TIMESTAMP.unpack_from(key, 1)[0], key[size:]

    def latest(self) -> int | None:
        last = next(self._committed.scan(_INDEX, _AFTER, reverse=True), None)
        return None if last is None else TIMESTAMP.unpack_from(last[0], 1)[0]
