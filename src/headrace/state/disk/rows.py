"""The committed rows of one column family."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NoReturn
from weakref import WeakSet

from rocksdict import Rdict, RdictIter, ReadOptions

from headrace.state.disk.failures import raise_meant

# Rows in files, and those that are in memory before.
_SIZES = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables")

Rows = Generator[tuple[bytes, bytes], None, None]


class RocksStore:
    """The committed rows of one column family (a `headrace.state.store.CommittedStore`)."""

    __slots__ = ("_columns", "_scans")

    def __init__(self, columns: Rdict) -> None:
        self._columns: Any = columns
        self._scans: WeakSet[Rows] = WeakSet()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        try:
            return self._columns.get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise_meant(error)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`."""
        try:
            return self._columns.get(list(keys))  # type: ignore[no-any-return]
        except Exception as error:
            raise_meant(error)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        reverse: bool = False,
        skipped_max: int = 0,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows; raise StateError before so many deleted ones are passed over, if not 0."""
        options = ReadOptions()
        options.set_max_skippable_internal_keys(skipped_max)
        if end is not None:
            options.set_iterate_upper_bound(end)
        # The cursor sees the rows of the moment it is made; a generator alone would begin later.
        cursor = self._columns.iter(options)
        rows = _descending(cursor, start, end) if reverse else _ascending(cursor, start, end)
        self._scans.add(rows)
        return rows

    def approximate_count(self) -> int:
        """Return the number of rows, roughly."""
        return int(self._columns.property_int_value("rocksdb.estimate-num-keys") or 0)

    def approximate_bytes(self) -> int:
        """Return what they take, roughly."""
        return sum(int(self._columns.property_int_value(name) or 0) for name in _SIZES)

    def move(self, columns: Rdict) -> None:
        """Show the rows of another column family from now on."""
        self._columns = columns

    def close(self) -> None:
        """Let go of the files, also where a traceback still holds this object or a scan."""
        self._columns = _Closed()
        for rows in list(self._scans):
            rows.close()


def _ascending(cursor: RdictIter, start: bytes | None, end: bytes | None) -> Rows:  # noqa: ARG001
    # `end` stays alive as long as the cursor: RocksDB reads the bound where Python keeps it.
    if start is None:
        cursor.seek_to_first()
    else:
        cursor.seek(start)
    key, value, step = cursor.key, cursor.value, cursor.next
    while (found := key()) is not None:
        yield found, value()
        step()
    failure = _failure_of(cursor)
    del cursor, key, value, step
    _raise(failure)


def _descending(cursor: RdictIter, start: bytes | None, end: bytes | None) -> Rows:  # noqa: ARG001
    # The lower bound is checked here, as rocksdict's setter for it sets the upper one.
    cursor.seek_to_last()
    key, value, step = cursor.key, cursor.value, cursor.prev
    while (found := key()) is not None:
        if start is not None and found < start:
            return
        yield found, value()
        step()
    failure = _failure_of(cursor)
    del cursor, key, value, step
    _raise(failure)


def _failure_of(cursor: RdictIter) -> Exception | None:
    """A cursor that meets a broken block ends as if there were no more rows."""
    try:
        cursor.status()
    except Exception as error:
        # A traceback would hold the cursor, and so the files: who closes them could not reopen.
        return error.with_traceback(None)
    return None


def _raise(failure: Exception | None) -> None:
    if failure is not None:
        raise_meant(failure)


class _Closed:
    """Stands where the rows were."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError("the state of this task is closed")
