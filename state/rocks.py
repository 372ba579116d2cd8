"""A task's state on disk: one RocksDB, a column family per store, one atomic batch per commit.

The only file that knows rocksdict. Writes are in RocksDB's log when `write` returns, in the page
cache of the machine: they survive the death of this process at any point. They are not forced to
the disk, so a loss of power can take the last ones; the position is lost together with the rows, as
they are one batch, and the changelog has both.

A bulk restore leaves the log out. What it wrote is durable only after every column family was
flushed; until then the positions on disk are the old ones, so a crash leaves old positions under
rows that are old or newer. Replaying a changelog from an old position over newer rows ends in the
same rows, since each record says a whole row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import orjson
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from state.errors import StateFormatError, StoreCorruptedError, UnknownStoreError
from state.spec import StoreSpec
from state.store import Delta, Position

__all__ = ["FORMAT_VERSION", "RocksMemory", "RocksTaskState"]

FORMAT_VERSION = 1
_META = "default"
_FORMAT_KEY = b"format"
_POSITION_PREFIX = b"position/"
_CORRUPT = re.compile(r"corrupt|checksum|bad table|truncated|not an sstable", re.IGNORECASE)

# Small memtables fit the processor's cache: at random keys a put costs 1.4, 1.8, 2.2 and 3.2 us with
# 4, 8, 16 and 64 MiB, while below 8 MiB the compaction of large stores costs more than is won.
# Merging several memtables into one file (min_write_buffer_number_to_merge) would give both, but
# then a manual flush that meets one under way can wait for ever: an end of a restore in 30 did.
_WRITE_BUFFER_BYTES = 8 << 20
_WRITE_BUFFERS_MAX = 6
# Small enough that replaying the log after a crash takes a fraction of a second.
_WAL_BYTES = 32 << 20


class RocksMemory:
    """What all RocksDBs of a process share: one block cache and one budget for write buffers.

    Args:
        block_cache_bytes: the cache of blocks that were read.
        write_buffer_bytes: rows that are in memory and not yet in a file.
    """

    def __init__(self, *, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self.cache = Cache(block_cache_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, False, self.cache
        )


class _RocksStore:
    """The committed rows of one column family."""

    __slots__ = ("_columns", "get")

    def __init__(self, columns: Any) -> None:
        self._columns = columns
        # Bound here: the buffer calls it for every row that is not in memory.
        self.get = columns.get

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""
        found: list[bytes | None] = self._columns.get(list(keys))
        return found

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order."""
        with _corruption():
            if reverse:
                yield from self._backwards(start, end)
                return
            for key, value in self._columns.items(from_key=start):
                if end is not None and key >= end:
                    return
                yield key, value

    def _backwards(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._columns.iter()
        if end is None:
            cursor.seek_to_last()
        else:
            cursor.seek_for_prev(end)
            if cursor.valid() and cursor.key() == end:
                cursor.prev()
        while cursor.valid():
            key = cursor.key()
            if start is not None and key < start:
                return
            yield key, cursor.value()
            cursor.prev()

    def approximate_count(self) -> int:
        """Return the number of rows, roughly."""
        return int(self._columns.property_int_value("rocksdb.estimate-num-keys") or 0)

    def close(self) -> None:
        """Let go of the files, also where a traceback still holds this object."""
        self._columns = None
        self.get = _refuse_closed


def _refuse_closed(key: bytes) -> NoReturn:  # noqa: ARG001
    raise ValueError("the state of this task is closed")


class RocksTaskState:
    """A `TaskState` in a directory.

    Args:
        path: the RocksDB's directory; made when missing.
        specs: the persistent stores. Column families of stores that are gone are kept.
        memory: what the process's RocksDBs share.

    Raises:
        StateFormatError: another release wrote the files.
        StoreCorruptedError: the files cannot be read.
    """

    def __init__(self, path: Path, specs: Iterable[StoreSpec], *, memory: RocksMemory) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        names = [spec.name for spec in specs]
        with _corruption():
            self._db = self._open(names, memory)
            self._columns = {name: self._db.get_column_family(_family(name)) for name in names}
            self._handles = {
                name: self._db.get_column_family_handle(_family(name)) for name in names
            }
            self._stores = {name: _RocksStore(columns) for name, columns in self._columns.items()}
            self._check_format()
            self._positions = {name: self._read_position(name) for name in names}
        self._restoring = False

    def _open(self, names: Sequence[str], memory: RocksMemory) -> Rdict:
        options = _options(memory)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_max_background_jobs(2)
        options.set_max_total_wal_size(_WAL_BYTES)
        options.set_keep_log_file_num(2)
        wanted = [_family(name) for name in names]
        exists = (self._path / "CURRENT").exists()
        there = Rdict.list_cf(str(self._path), options) if exists else []
        families = dict.fromkeys([*wanted, *(f for f in there if f != _META)])
        return Rdict(
            str(self._path),
            options,
            column_families={family: _options(memory) for family in families},
        )

    def _check_format(self) -> None:
        found = self._db.get(_FORMAT_KEY)
        if found is None:
            self._db[_FORMAT_KEY] = b"%d" % FORMAT_VERSION
        elif found != b"%d" % FORMAT_VERSION:
            raise StateFormatError(
                f"{self._path} has format {found.decode(errors='replace')} and this release knows "
                f"{FORMAT_VERSION}; run the release that wrote it, or remove the directory to "
                "restore the state from its changelogs"
            )

    def _read_position(self, name: str) -> Position | None:
        data = self._db.get(_POSITION_PREFIX + name.encode())
        if data is None:
            return None
        try:
            return Position(*orjson.loads(data))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise StoreCorruptedError(
                f"the position of store {name!r} in {self._path} cannot be read: {error}"
            ) from error

    def store(self, name: str) -> _RocksStore:
        """Return a store's committed rows."""
        self._known(name)
        return self._stores[name]

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Apply all deltas and positions in one batch."""
        if self._restoring:
            raise ValueError("a bulk restore is under way; end it before writing")
        batch = self._batch(deltas, positions)
        with _corruption():
            self._db.write(batch)
        self._positions.update(positions)

    def position(self, store_name: str) -> Position | None:
        """Return the position of a store, or None when its rows may not be built upon."""
        self._known(store_name)
        return self._positions[store_name]

    def begin_restore(self) -> None:
        """Start a bulk restore: stores without a position are emptied, `write` is refused."""
        for name, position in self._positions.items():
            if position is None:
                self._empty(name)
        self._restoring = True

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Apply changelog records in their order; durable only after `end_restore`."""
        self._require_restore()
        batch = self._batch(deltas, {})
        options: Any = WriteOptions()
        options.disable_wal = True
        with _corruption():
            self._db.write(batch, options)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Make the restored rows durable, then their positions, then allow `write` again."""
        self._require_restore()
        with _corruption():
            for columns in self._columns.values():
                columns.flush(True)
        self._restoring = False
        self.write({}, positions)

    def drop_store(self, name: str) -> None:
        """Empty one store and forget its position."""
        self._known(name)
        # The position goes first: rows without one are not built upon.
        with _corruption():
            self._db.delete(_POSITION_PREFIX + name.encode())
        self._positions[name] = None
        self._empty(name)

    def close(self) -> None:
        """Release the files; an unfinished bulk restore is left as a crash would leave it."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        self._handles.clear()
        self._columns.clear()
        self._db.close()

    def _batch(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for name in (*deltas, *positions):
            self._known(name)
        for name, delta in deltas.items():
            handle = self._handles[name]
            for key, value in delta:
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)
        for name, p in positions.items():
            encoded = orjson.dumps([p.topic_id, p.offset, p.commit_id, p.wall_ms])
            put(_POSITION_PREFIX + name.encode(), encoded)
        return batch

    def _empty(self, name: str) -> None:
        columns = self._columns[name]
        with _corruption():
            last = columns.iter()
            last.seek_to_last()
            if last.valid():
                # The end is exclusive, and no key is longer than the last one with a byte more.
                columns.delete_range(b"", last.key() + b"\x00")

    def _require_restore(self) -> None:
        if not self._restoring:
            raise ValueError("no bulk restore is under way; begin one first")

    def _known(self, name: str) -> None:
        if name not in self._columns:
            raise UnknownStoreError(
                f"this task has no persistent store {name!r}; it has {sorted(self._columns)}"
            )


def _family(store: str) -> str:
    # RocksDB's own family is called default, and a store may be too.
    return f"store/{store}"


def _options(memory: RocksMemory) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_block_size(16 << 10)
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(_WRITE_BUFFERS_MAX)
    options.set_write_buffer_manager(memory.write_buffers)
    # One thread writes, so the memtable need not be ready for several.
    options.set_allow_concurrent_memtable_write(False)
    return options


@contextmanager
def _corruption() -> Iterator[Any]:
    """Tell broken files from everything else that RocksDB raises."""
    try:
        yield
    except (StateFormatError, StoreCorruptedError):
        raise
    except Exception as error:
        if _CORRUPT.search(str(error)):
            raise StoreCorruptedError(f"local state cannot be read: {error}") from error
        raise
