"""Readers of stores for queries: key and value objects over committed rows.

The methods have the names of the stores in processors. Times are milliseconds since 1970 or
datetimes. The rows of a range are read in pieces, so a range of any size needs little memory; rows
committed in the meantime appear in later pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Generic, TypeVar

from headrace.state.codec import TIMESTAMP, decode_timestamped, prefix_end
from headrace.state.layout import is_deletion, key_and_time, prefix
from headrace.state.store import CommittedStore
from headrace.streams.queries.answers import KeyResult, PartitionPosition, RowPage, StoreRow
from headrace.streams.queries.committed_rows import CommittedRows
from headrace.streams.queries.descriptors import StoreDescriptor
from headrace.streams.queries.errors import NotReadableError, QueryError, WrongQueryError
from headrace.streams.queries.kinds import KindGuard
from headrace.streams.queries.scan import Cursor, Scan, ScannedRow
from headrace.topology.errors import SerdeError
from headrace.topology.serdes import Serde
from headrace.topology.serdes.windows_serde import SessionWindowedSerde, WindowStoreSerde

# Times in queries: milliseconds since 1970, or datetimes.


Time = int | datetime
"""Milliseconds since 1970, or a datetime, which is UTC by default, as over HTTP."""


def ms_of(time: Time | None, *, otherwise: int = 0) -> int:
    """Convert a time to milliseconds since 1970, or raise WrongQueryError.

    >>> ms_of(datetime(1970, 1, 1, 0, 0, 1)), ms_of(1500), ms_of(None, otherwise=7)
    (1000, 1500, 7)
    """
    if time is None:
        return otherwise
    if isinstance(time, datetime):
        instant = time if time.tzinfo else time.replace(tzinfo=UTC)
        return max(0, round(instant.timestamp() * 1000))
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    raise WrongQueryError(
        f"a time must be a datetime or milliseconds since 1970, not {type(time).__name__}"
    )


K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P")
R = TypeVar("R")

LAST_MS = 2**63 - 1
COUNTED_ROWS = 1_000
"""Up to this number, rows are counted: RocksDB's estimate counts updated rows repeatedly."""
_SEQUENCE_BYTES = 4
_NO_PARTITION = -1


@dataclass(frozen=True, slots=True)
class Piece(Generic[R]):
    """Consecutive rows of a partition at the same time, in the order of their encoded keys.

    `offset` is their position in the changelog; `last` is None for the last piece.
    """

    partition: int
    offset: int
    rows: list[R]
    last: bytes | None


def _approximate_count(rows: CommittedStore) -> int:
    """Return the number of rows: an estimate of RocksDB, or exact if the store is small."""
    seen = list(islice(rows.scan(None, None), COUNTED_ROWS + 1))
    if len(seen) <= COUNTED_ROWS:
        return sum(row is not None for _, row in seen)
    return max(len(seen), rows.approximate_count())


class StoreReader(KindGuard, Generic[K, V]):
    """Common base of the readers of all kinds of stores.

    A reader has the rows of the partitions on this host, which `positions` returns; a key in a
    partition of another host is not found. `headrace.connect` queries all hosts. A method of
    another kind of store raises `WrongKindError`, which names the right method.

    Each query calls `source`, so that any thread may query.
    """

    def __init__(self, store: StoreDescriptor, source: Callable[[], CommittedRows]) -> None:
        super().__init__(store)
        self._source = source

    @property
    def name(self) -> str:
        return self.store.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}>"

    @property
    def key_serde(self) -> Serde[Any]:
        """The serde of keys in queries; in a windowed store the serde of keys without windows."""
        return self.store.key

    def all(self, *, reverse: bool = False, limit: int | None = None) -> Iterator[StoreRow[K, V]]:
        """Return all rows, in the order of the encoded keys."""
        return self.rows(Scan(reverse=reverse), limit)

    def count(self) -> int:
        """Return the number of rows; this reads all rows."""
        return self.counted(exact=True)[0]

    def approximate_num_entries(self) -> int:
        """Return a number that is exact in partitions with at most `COUNTED_ROWS` rows.

        Updated or deleted rows may be counted, too.
        """
        return self.counted(exact=False)[0]

    def counted(self, *, exact: bool) -> tuple[int, tuple[PartitionPosition, ...]]:
        """Return the number of rows, and their partitions; an exact count reads all rows."""
        count, source = 0, self._source()
        if exact:
            count = sum(1 for _ in source.scan_rows(Scan()))
        else:
            for part in source.parts():
                with source.read(part) as access:
                    count += _approximate_count(self.store.layout.view(access.rows))
        return count, source.shown_positions()

    def positions(self) -> tuple[PartitionPosition, ...]:
        """Return the readable partitions on this host with their positions."""
        source = self._source()
        for part in source.parts():
            try:
                with source.read(part, any_age=True):
                    pass
            except NotReadableError:
                continue
        return source.shown_positions()

    def page(
        self, scan: Scan, *, limit: int, after: str | None = None, with_cursors: bool = False
    ) -> RowPage[K, V]:
        """Return a page of a scan, with the cursor of the next page, and of each row if wanted."""
        source = self._source()
        scan_rows = source.scan_rows(scan, None if after is None else Cursor.of(after))
        steps = list(islice(scan_rows, limit + 1))
        rows = tuple(self._row(step) for step in steps[:limit])
        more = steps[limit - 1].cursor if len(steps) > limit else None
        cursors = tuple(step.cursor for step in steps[:limit]) if with_cursors else ()
        return RowPage(rows=rows, after=more, positions=source.shown_positions(), cursors=cursors)

    def rows(self, scan: Scan, limit: int | None = None) -> Iterator[StoreRow[K, V]]:
        if limit is not None and limit < 0:
            raise WrongQueryError(f"limit must be a maximum number of rows or None, not {limit}")
        return (self._row(step) for step in islice(self._source().scan_rows(scan), limit))

    def of_one(self, key: bytes) -> Scan:
        return Scan(key, key + b"\0")

    def require_all(self, partitions: AbstractSet[int]) -> None:
        """Raise NotReadableError if a partition cannot be read, or is not on this host."""
        source = self._source()
        here = {part.partition: part for part in source.parts()}
        if missing := sorted(partitions - here.keys()):
            raise NotReadableError(
                f"this host has no rows of partition {missing[0]} of store {self.name!r}, and the "
                "rows of all partitions are required. Follow the changes without the rows, or from "
                "the beginning"
            )
        for part in here.values():
            with source.read(part):
                pass

    def pieces(self, scan: Scan, partitions: AbstractSet[int]) -> Iterator[Piece[StoreRow[K, V]]]:
        """Yield rows partition by partition; see `require_all`."""
        self.require_all(partitions)
        source = self._source()
        for part in source.parts():
            for position, steps, last in source.pieces(part, scan, is_exact=True):
                rows = [self._row(step) for step in steps]
                yield Piece(part.partition, position.offset, rows, last)

    def next_piece(self, scan: Scan, after: str | None) -> tuple[Piece[StoreRow[K, V]], str | None]:
        """Return the next piece of the only selected partition, and the cursor of the next.

        `after` is the cursor returned with the previous piece.
        """
        source = self._source()
        (part,) = source.parts()
        left = scan if after is None else scan.rest(Cursor.of(after), part.partition)
        position, steps, last = next(source.pieces(part, left, is_exact=True))
        piece = Piece(part.partition, position.offset, [self._row(step) for step in steps], last)
        more = None if last is None else ScannedRow(last, part.partition, b"", b"").cursor
        return piece, more

    def _row(self, step: ScannedRow) -> StoreRow[K, V]:
        return self._decoded(step.row_key, step.row, step.partition)

    def _decoded(self, row_key: bytes, row: bytes, partition: int) -> StoreRow[K, V]:
        timestamp, data = decode_timestamped(row)
        return self._shown(row_key, data, timestamp, partition)

    def _shown(self, row_key: bytes, data: bytes, timestamp: int, partition: int) -> StoreRow[K, V]:
        try:
            key = self.store.key.deserialize(row_key)
            value = self.store.value.deserialize(data)
        except SerdeError as error:
            raise QueryError(
                f"the application's serdes cannot decode a row of store {self.name!r} (another "
                f"version may have written it): {error}"
            ) from error
        shown = None if partition == _NO_PARTITION else partition
        return StoreRow(key=key, value=value, timestamp=timestamp, partition=shown)

    def encoded(self, key: object, serde: Serde[Any] | None = None) -> bytes:
        serde = serde or self.key_serde
        if key is None:
            raise WrongQueryError(f"store {self.name!r} has no key None")
        try:
            return serde.serialize(key)
        except SerdeError as error:
            raise WrongQueryError(
                f"keys of store {self.name!r} use serde {serde.name}: {error}"
            ) from error


class KeyValueReader(StoreReader[K, V]):
    """Reader of a key-value store, a table, or a global table."""

    def find(self, key: K | bytes, *, is_encoded: bool = False) -> KeyResult[K, V]:
        """Return the row of a key with its partition; `is_encoded` if the key is bytes."""
        data = key if is_encoded and isinstance(key, bytes) else self.encoded(key)
        source = self._source()
        found = source.get(data)
        row = None if found is None else self._decoded(data, found[1], found[0])
        return KeyResult(row=row, positions=source.shown_positions())

    def get(self, key: K, *, as_of: Time | None = None) -> V | None:
        """Return the value of a key, or None; `as_of` is only for versioned stores."""
        if as_of is not None:
            raise self._refused("as_of")
        row = self.find(key).row
        return None if row is None else row.value

    def __getitem__(self, key: K) -> V:
        row = self.find(key).row
        if row is None:
            raise KeyError(key)
        return row.value

    def __contains__(self, key: K) -> bool:
        return self.find(key).row is not None

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of keys in their order, and None for missing keys."""
        rows, _ = self.find_many([self.encoded(key) for key in keys])
        return [None if row is None else row.value for row in rows]

    def find_many(
        self, keys: Sequence[bytes]
    ) -> tuple[list[StoreRow[K, V] | None], tuple[PartitionPosition, ...]]:
        source = self._source()
        rows = [
            None if found is None else self._decoded(key, found[1], found[0])
            for key, found in zip(keys, source.get_many(keys), strict=True)
        ]
        return rows, source.shown_positions()

    def range(
        self, start: K | None, end: K | None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return the rows between two keys, both inclusive, in the order of encoded keys.

        None is the first or the last key of the store.
        """
        return self.rows(self.between(start, end, reverse=reverse), limit)

    def between(self, start: K | None, end: K | None, *, reverse: bool = False) -> Scan:
        low = None if start is None else self.encoded(start)
        # The first key after `end`.
        high = None if end is None else self.encoded(end) + b"\0"
        return Scan(low, high, reverse)

    def prefix_scan(
        self, prefix: P, serde: Serde[P] | None = None, *, limit: int | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return the rows whose encoded key starts with an encoded prefix.

        `serdes.list_of` encodes the length first, and JSON a quote last, so their encoded keys
        never start with a shorter list or text. The default serde is the key serde.
        """
        data = self.encoded(prefix, serde)
        return self.rows(Scan(data, prefix_end(data)), limit)


class _TimedReader(StoreReader[K, V]):
    """Common base of the readers of window and session stores."""

    def __getitem__(self, key: Any) -> V:
        raise self._refused("get")

    def __contains__(self, key: object) -> bool:
        raise self._refused("get")

    @property
    def key_serde(self) -> Serde[Any]:
        serde = self.store.key
        inner: Serde[Any] | None = None
        if isinstance(serde, WindowStoreSerde):
            inner = serde.windowed.inner
        elif isinstance(serde, SessionWindowedSerde):
            inner = serde.inner
        assert inner is not None, self.name
        return inner

    def of_one(self, key: bytes) -> Scan:
        return self.of_key(key, 0, LAST_MS)

    def of_key(self, key: bytes, start: int, end: int) -> Scan:
        raise NotImplementedError

    def of_times(self, start: int, end: int) -> Scan:
        """Return the scan of all windows between two times, both inclusive."""
        return Scan(times=(start, min(end, LAST_MS - 1) + 1))


class WindowReader(_TimedReader[K, V]):
    """Reader of a window store, or of a windowed table."""

    def get(self, key: Any, start: Time | None = None, *, as_of: Time | None = None) -> V | None:
        """Return the value of the window of a key that starts at `start`, which is required."""
        if start is None or as_of is not None:
            raise self._refused("get")
        row = next(self.fetch(key, start, start), None)
        return None if row is None else row.value

    def fetch(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return the key's windows that start between two times, both inclusive, by start."""
        bounds = ms_of(start, otherwise=0), ms_of(end, otherwise=LAST_MS)
        return self.rows(self.of_key(self.encoded(key), *bounds))

    def fetch_all(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return all windows that start between two times, both inclusive, by start and key."""
        scan = self.of_times(ms_of(start, otherwise=0), ms_of(end, otherwise=LAST_MS))
        return self.rows(scan, limit)

    def of_key(self, key: bytes, start: int, end: int) -> Scan:
        low = key + TIMESTAMP.pack(max(start, 0))
        high = key + TIMESTAMP.pack(min(end, LAST_MS)) + b"\xff" * (_SEQUENCE_BYTES + 1)
        return Scan(low, high, key=key)


class SessionReader(_TimedReader[K, V]):
    """Reader of a session store, or of a table of sessions."""

    def fetch(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return the sessions of a key, by end and start; see `find_sessions`."""
        return self.find_sessions(key, start, end)

    def fetch_all(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return all sessions that end between two times, both inclusive, by end."""
        return self.find_sessions_by_end(start, end, limit=limit)

    def find_sessions(
        self, key: Any, earliest_end: Time | None, latest_start: Time | None
    ) -> Iterator[StoreRow[K, V]]:
        """Return the sessions of a key within both inclusive bounds, by end."""
        bounds = ms_of(earliest_end, otherwise=0), ms_of(latest_start, otherwise=LAST_MS)
        return self.rows(self.of_key(self.encoded(key), *bounds))

    def find_sessions_by_end(
        self, earliest_end: Time | None, latest_end: Time | None, *, limit: int | None = None
    ) -> Iterator[StoreRow[K, V]]:
        """Return the sessions of all keys that end between two times, both inclusive, by end."""
        bounds = ms_of(earliest_end, otherwise=0), ms_of(latest_end, otherwise=LAST_MS)
        return self.rows(self.of_times(*bounds), limit)

    def of_key(self, key: bytes, start: int, end: int) -> Scan:
        low = key + TIMESTAMP.pack(max(start, 0))
        high = key + b"\xff" * (2 * TIMESTAMP.size + 1)

        def keep(row_key: bytes) -> bool:
            begun = len(row_key) - TIMESTAMP.size
            started: int = TIMESTAMP.unpack_from(row_key, begun)[0]
            return started <= end

        return Scan(low, high, keep=keep, key=key)


class VersionedReader(KeyValueReader[K, V]):
    """Reader of a versioned store: `get` and ranges return the last version of each key."""

    def find_as_of(
        self, key: K | bytes, as_of: int, *, is_encoded: bool = False
    ) -> KeyResult[K, V]:
        """Return the version of a key that was valid at a time, with its partition.

        For times before the store's history, old versions may be missing.
        """
        data = key if is_encoded and isinstance(key, bytes) else self.encoded(key)
        start = prefix(data)
        end = start + TIMESTAMP.pack(min(max(as_of, -1), LAST_MS - 1) + 1)

        def version(rows: Any) -> bytes | None:
            for row_key, row in rows.scan(start, end, reverse=True):
                since = TIMESTAMP.pack(key_and_time(row_key)[1])
                return since + (b"" if is_deletion(row) else row)
            return None

        source = self._source()
        found = source.first(data, version)
        row = None
        if found is not None and len(found[1]) > TIMESTAMP.size:
            since = TIMESTAMP.unpack_from(found[1])[0]
            row = self._shown(data, found[1][TIMESTAMP.size + 1 :], since, found[0])
        return KeyResult(row=row, positions=source.shown_positions())

    def get(self, key: K, *, as_of: Time | None = None) -> V | None:
        """Return the value of a key that is valid now or was valid at a time, or None."""
        when = None if as_of is None else ms_of(as_of, otherwise=0)
        row = self.find(key) if when is None else self.find_as_of(key, when)
        return None if row.row is None else row.row.value


READERS: dict[str, type[StoreReader[Any, Any]]] = {
    "key-value": KeyValueReader,
    "window": WindowReader,
    "session": SessionReader,
    "versioned": VersionedReader,
}
"""The readers by kind of store."""
