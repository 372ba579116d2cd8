"""On-disk format of a versioned store; pure functions.

    changelog    key                         value, or null for a deletion; the record's time
    row          0  key, escaped  time (8)   1 value, or 0 for a deletion
    index        1  time (8)  key            nothing

A version is valid from its time until the time of the next version. The changelog has Kafka
Streams' format, with several records per key. Escaped keys sort like the keys, and no escaped key
is a prefix of another, so all versions of a key are adjacent and sorted by time.
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
    """Return the prefix of all rows of a key on disk, which no other key's rows have.

    >>> prefix(b"a") < prefix(b"a" + bytes(1)) < prefix(b"aa") < prefix(b"b")
    True
    """
    return _ROW + key.replace(_PLAIN, _ESCAPED) + _END


def key_and_time(row_key: bytes) -> tuple[bytes, int]:
    r"""Return the key of a version's row, and the time from which it is valid.

    >>> key_and_time(prefix(b"a" + bytes(2)) + TIMESTAMP.pack(5))
    (b'a\x00\x00', 5)
    """
    escaped = row_key[1 : -TIMESTAMP.size - len(_END)]
    time: int = TIMESTAMP.unpack_from(row_key, len(row_key) - TIMESTAMP.size)[0]
    return escaped.replace(_ESCAPED, _PLAIN), time


def is_deletion(row: bytes) -> bool:
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
    """Layout of versioned stores; see the module."""

    time_of: Callable[[bytes], int] | None = field(default=None, init=False)

    def rows(self, changes: Changes) -> Delta:
        pack = TIMESTAMP.pack
        rows: list[tuple[bytes, bytes | None]] = []
        for key, value, time in changes:
            rows.append((prefix(key) + pack(time), _GONE if value is None else _THERE + value))
            rows.append((_INDEX + pack(time) + key, b""))
        return rows

    def local(self, rows: Delta, indexed: Collection[bytes] = ()) -> Delta:  # noqa: ARG002
        raise AssertionError("versions are written with their times")

    def view(self, committed: CommittedStore) -> CommittedStore:
        return LatestVersions(committed)

    def changes(self, committed: CommittedStore) -> Iterator[tuple[bytes, bytes | None, int]]:
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
        for key, versions in groupby(rows, lambda found: key_and_time(found[0])[0]):
            first, *rest = versions
            found = _timestamped(*(first if reverse or not rest else rest[-1]))
            if found is not None:
                yield key, found

    def approximate_count(self) -> int:
        """Return half of the number of rows on disk, which count all versions and index entries."""
        return self._committed.approximate_count() // 2

    def approximate_bytes(self) -> int:
        return self._committed.approximate_bytes()


def _timestamped(row_key: bytes, row: bytes) -> bytes | None:
    if is_deletion(row):
        return None
    return encode_timestamped(key_and_time(row_key)[1], row[1:])
