"""How the versions of a versioned store lie on disk; pure functions.

    changelog    key                         value, or null for a deletion; the record's time
    row          0  key, escaped  time (8)   1 value, or 0 for a deletion
    index        1  time (8)  key            nothing

A version is valid from its time until that of the next one. The changelog is Kafka Streams', with
several records a key. Escaped keys have the order of the keys, and none begins with another one, so
all versions of a key lie together, in the order of time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from headrace.state.codec import TIMESTAMP, encode_timestamped
from headrace.state.store import CommittedStore, Delta

Changes = Sequence[tuple[bytes, bytes | None, int]]
"""Key, value or None, and time, as in the changelog."""

_ROW = b"\x00"
_INDEX = b"\x01"
_THERE = b"\x01"
_GONE = b"\x00"
_END = b"\x00\x00"
_PLAIN, _ESCAPED = b"\x00", b"\x00\xff"
_INDEX_SIZE = 1 + TIMESTAMP.size


def prefix(key: bytes) -> bytes:
    """What the rows of a key, and of no other, begin with on disk.

    >>> prefix(b"a") < prefix(b"a" + bytes(1)) < prefix(b"aa") < prefix(b"b")
    True
    """
    return _ROW + key.replace(_PLAIN, _ESCAPED) + _END


def key_and_time(row_key: bytes) -> tuple[bytes, int]:
    """The key of a version's row, and the time from which it is valid.

    >>> key_and_time(prefix(b"a" + bytes(2)) + TIMESTAMP.pack(5))
    (b'a\\x00\\x00', 5)
    """
    escaped = row_key[1 : -TIMESTAMP.size - len(_END)]
    time: int = TIMESTAMP.unpack_from(row_key, len(row_key) - TIMESTAMP.size)[0]
    return escaped.replace(_ESCAPED, _PLAIN), time


def is_deletion(row: bytes) -> bool:
    """Whether a version says that the key has no value."""
    return row[:1] == _GONE


def index_entries(
    committed: CommittedStore, start_ms: int, end_ms: int
) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield entry, time and key of the versions with `start_ms` <= time < `end_ms`, by time."""
    low, high = _INDEX + TIMESTAMP.pack(max(start_ms, 0)), _INDEX + TIMESTAMP.pack(end_ms)
    for entry, _ in committed.scan(low, high):
        yield entry, TIMESTAMP.unpack_from(entry, 1)[0], entry[_INDEX_SIZE:]


@dataclass(frozen=True, slots=True)
class Versioned:
    """The layout: see the module."""

    time_of: Callable[[bytes], int] | None = field(default=None, init=False)

    def rows(self, changes: Changes) -> Delta:
        """The rows to write to disk for records of the changelog."""
        pack = TIMESTAMP.pack
        rows: list[tuple[bytes, bytes | None]] = []
        for key, value, time in changes:
            rows.append((prefix(key) + pack(time), _GONE if value is None else _THERE + value))
            rows.append((_INDEX + pack(time) + key, b""))
        return rows

    def local(self, rows: Delta, indexed: Collection[bytes] = ()) -> Delta:  # noqa: ARG002
        """Not to be asked: a row of a key would not say which version it is."""
        raise AssertionError("versions are written with their times")

    def view(self, committed: CommittedStore) -> CommittedStore:
        """The last version of each key."""
        return LatestVersions(committed)

    def changes(self, committed: CommittedStore) -> Iterator[tuple[bytes, bytes | None, int]]:
        """All versions, those of a key by time: the last record of a key is its last version."""
        for row_key, row in committed.scan(_ROW, _INDEX):
            key, time = key_and_time(row_key)
            yield key, None if is_deletion(row) else row[1:], time


class LatestVersions:
    """The committed rows of a versioned store as a plain one has them: the last of each key.

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
        """Return the time and value of the last version of `key`, or None when it has none."""
        start = prefix(key)
        end = start + TIMESTAMP.pack(2**63 - 1)
        for row_key, row in self._committed.scan(start, end, reverse=True):
            return _timestamped(row_key, row)
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order."""
        low = _ROW if start is None else prefix(start)
        high = _INDEX if end is None else prefix(end)
        rows = self._committed.scan(low, high, reverse=reverse)
        for key, versions in groupby(rows, lambda found: key_and_time(found[0])[0]):
            first, *rest = versions
            found = _timestamped(*(first if reverse or not rest else rest[-1]))
            if found is not None:
                yield key, found

    def approximate_count(self) -> int:
        """Return the number of rows, roughly: all versions are counted."""
        return self._committed.approximate_count() // 2

    def approximate_bytes(self) -> int:
        """Return what the rows and their index take, roughly."""
        return self._committed.approximate_bytes()


def _timestamped(row_key: bytes, row: bytes) -> bytes | None:
    if is_deletion(row):
        return None
    return encode_timestamped(key_and_time(row_key)[1], row[1:])
