"""Task state on disk: a RocksDB with a column family per store, and an atomic batch per commit.

Only this module and `secondary.py` import rocksdict. When `write` returns, the writes are in
RocksDB's log, in the page cache of the machine: they survive the death of this process at any
point. A loss of power can lose the last writes, rows and position together because they are in one
batch; the changelog has both.

A bulk restore does not write the log. Its rows are durable only after every column family was
flushed. Until then the positions on disk are the old positions, so a crash leaves old positions
with rows that are old or newer. Replaying a changelog from an old position over newer rows ends in
the same rows, because each record contains a whole row. Unless the restored rows come in key order,
the files are reopened with memtables that are about twelve times as fast to write, but slow to
read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import orjson
from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DbClosedError,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from headrace.state.directory import open_files_advice
from headrace.state.errors import (
    DiskFullError,
    StateError,
    StateFormatError,
    StateLockedError,
    StoreCorruptedError,
    UnknownStoreError,
)
from headrace.state.file_list import OpenFileList, StoredFileList, open_file_list, require_readable
from headrace.state.layout import read_layout, write_layouts
from headrace.state.log import get_logger
from headrace.state.segments import layout_of, segment_ms_in
from headrace.state.spec import StoreSpec
from headrace.state.store import Delta, LastRecord, Position, RangeDelta

# Conversion of rocksdict's exceptions.


# RocksDB's messages start with the status; the rest may quote a path with any text.
_CORRUPT = re.compile(r"Corruption: |IO error: No such file or directory")
# The cause may follow the failed operation, such as writing the options.
_FULL = re.compile(
    r"IO error: .*(No space left on device|File too large|Disk quota exceeded)", re.DOTALL
)
_NO_FILES = re.compile(r"IO error: .*Too many open files", re.DOTALL)
_LOCKED = re.compile(r"IO error: (While lock file|lock hold by current process)")


@contextmanager
def converted_errors() -> Iterator[None]:
    """Convert rocksdict's exceptions to errors of this package."""
    try:
        yield
    except Exception as error:
        raise_converted(error)


def raise_converted(error: Exception) -> NoReturn:
    """Raise the error of this package for RocksDB's message: rocksdict raises plain `Exception`."""
    if isinstance(error, OSError):  # of rocksdict itself, which has a file next to RocksDB's
        raise StateError(f"RocksDB failed: {error}") from error
    if type(error) is not Exception:
        raise error
    text = str(error)
    if _CORRUPT.match(text):
        raise StoreCorruptedError(f"local state cannot be read: {text}") from error
    if _LOCKED.match(text):
        raise StateLockedError(
            f"the state is open in another process, or in this process: {text}; stop the process, "
            "or close the state first"
        ) from error
    if _FULL.match(text):
        raise DiskFullError(
            f"RocksDB failed: {text}; nothing is lost: free space on the disk of state.dir"
        ) from error
    if _NO_FILES.match(text):
        raise StateError(f"RocksDB failed: {text}; {open_files_advice()}") from error
    raise StateError(f"RocksDB failed: {text}") from error


# Options of RocksDB, and the memory that the RocksDBs of a process share.


# Small memtables fit the processor's cache: at random keys a put takes 1.4, 1.8, 2.2 and 3.2 us
# with 4, 8, 16 and 64 MiB; below 8 MiB the compaction of large stores costs more than it saves.
# With min_write_buffer_number_to_merge the end of one restore in 30 hung in a manual flush.
_WRITE_BUFFER_BYTES = 8 << 20
_WRITE_BUFFERS_MAX = 6
# 2 % of a memtable: reads of large stores take 25 % less time, writes 5 % more.
_MEMTABLE_FILTER_RATIO = 0.02
# Allocated with the first row; the default, 1/8 of a memtable, is too much for 60 column families.
_ARENA_BLOCK_BYTES = 64 << 10


class RocksMemory:
    """Block cache and write buffer budget shared by all RocksDBs of a process."""

    def __init__(self, *, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self.cache = Cache(block_cache_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, False, self.cache
        )


def row_options(memory: RocksMemory) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_block_size(16 << 10)
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    # Most rows are in files, so the filter saves most searches in memtables.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_FILTER_RATIO)
    options.set_max_write_buffer_number(_WRITE_BUFFERS_MAX)
    options.set_write_buffer_manager(memory.write_buffers)
    # One thread writes, so the memtable need not be ready for several.
    options.set_allow_concurrent_memtable_write(False)
    return options


def bulk_options(memory: RocksMemory) -> Options:
    """Return options with vector memtables, sorted when flushed; a read would sort all rows."""
    options = row_options(memory)
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_memtable_whole_key_filtering(False)
    options.set_memtable_prefix_bloom_ratio(0.0)
    return options


# The committed rows of one column family.


# Rows in files, and rows in memtables.
_SIZES = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables")

Rows = Generator[tuple[bytes, bytes], None, None]


class RocksStore:
    """Committed rows of a column family (a `headrace.state.store.CommittedStore`)."""

    __slots__ = ("_columns", "_scans")

    def __init__(self, columns: Rdict) -> None:
        self._columns: Any = columns
        self._scans: WeakSet[Rows] = WeakSet()

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._columns.get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise_converted(error)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return self._columns.get(list(keys))  # type: ignore[no-any-return]
        except Exception as error:
            raise_converted(error)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        reverse: bool = False,
        skipped_max: int = 0,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Raise StateError rather than skip more than `skipped_max` deleted rows; 0 is no limit."""
        options = ReadOptions()
        options.set_max_skippable_internal_keys(skipped_max)
        if end is not None:
            options.set_iterate_upper_bound(end)
        # Create the cursor now: it shows the rows of its creation, and a generator starts later.
        cursor = self._columns.iter(options)
        rows = _descending(cursor, start, end) if reverse else _ascending(cursor, start, end)
        self._scans.add(rows)
        return rows

    def approximate_count(self) -> int:
        return int(self._columns.property_int_value("rocksdb.estimate-num-keys") or 0)

    def approximate_bytes(self) -> int:
        return sum(int(self._columns.property_int_value(name) or 0) for name in _SIZES)

    def move(self, columns: Rdict) -> None:
        self._columns = columns

    def close(self) -> None:
        """Release the files, even if a traceback still references this object or a scan."""
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
    while (row_key := key()) is not None:
        yield row_key, value()
        step()
    failure = _failure_of(cursor)
    del cursor, key, value, step
    _raise(failure)


def _descending(cursor: RdictIter, start: bytes | None, end: bytes | None) -> Rows:  # noqa: ARG001
    # The lower bound is checked here, as rocksdict's setter for it sets the upper one.
    cursor.seek_to_last()
    key, value, step = cursor.key, cursor.value, cursor.prev
    while (row_key := key()) is not None:
        if start is not None and row_key < start:
            return
        yield row_key, value()
        step()
    failure = _failure_of(cursor)
    del cursor, key, value, step
    _raise(failure)


def _failure_of(cursor: RdictIter) -> Exception | None:
    """Return the error that ended a scan, or None: a cursor ends silently at a corrupt block."""
    try:
        cursor.status()
    except Exception as error:
        # A traceback would reference the cursor and so keep the files open after `close`.
        return error.with_traceback(None)
    return None


def _raise(failure: Exception | None) -> None:
    if failure is not None:
        raise_converted(failure)


class _Closed:
    """Placeholder for the rows of a closed store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError("the state of this task is closed")


_log = get_logger()

FORMAT_VERSION = 1
_META = "default"
_FORMAT_KEY = b"format"
_POSITION_PREFIX = b"position/"
_FAMILY_PREFIX = "store/"
_FILES_KEY = b"files"
_RESTORING_KEY = b"restoring"
"""Key that exists from the start of a bulk restore until positions are written after it."""
_SAMPLED_ROWS, _ASCENDING_SHARE = 200, 0.75
"""Number of sampled rows of a restore, and the share of ascending keys that counts as sorted."""
_CLOSE_FAILED = (
    "no action is needed: rows that the next opening cannot read are restored from the changelogs, "
    "except for stores without a changelog"
)
_CONVERTED_ROWS = 10_000
"""Number of rows that are converted to another format at a time."""
_WAL_BYTES = 32 << 20  # replayed after a crash in a fraction of a second


class RocksTaskState:
    """`TaskState` in a directory.

    Args:
        path: The RocksDB directory; created if missing.
        specs: The persistent stores. Column families of removed stores are kept.
        memory: Memory shared by the process's RocksDBs.

    Raises:
        StateFormatError: Another release wrote the files.
        StoreCorruptedError: The files cannot be read.
    """

    def __init__(self, path: Path, specs: Iterable[StoreSpec], *, memory: RocksMemory) -> None:
        self._path = path
        self._memory = memory
        self._specs = {spec.name: spec for spec in specs}
        self._families: list[str] = []
        """The column families of all stores, removed stores and other formats included."""
        self._columns: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._stores: dict[str, RocksStore] = {}
        self._positions: dict[str, Position | None] = {}
        self._restored: set[str] | None = None  # stores, by the bulk restore in progress
        self._is_marked = False
        self._is_order_known = False
        """Whether the key order of the current restore has been determined."""
        self._is_bulk = False
        """Whether the files are open with `bulk_options`."""
        path.mkdir(parents=True, exist_ok=True)
        with open_file_list(path) or nullcontext() as listed_files:
            self._open(row_options)
            try:
                self._require_complete(listed_files)
                self._read()
                self._convert_other_formats()
                # RocksDB has created a new MANIFEST; store its length and checksum now.
                self.write({}, {})
            except BaseException:
                self.close()
                raise

    def _read(self) -> None:
        with converted_errors():
            self._check_format()
            write_layouts(self._db, {s.disk_name: s.layout for s in self._specs.values()})
            self._is_marked = self._db.get(_RESTORING_KEY) is not None
            for name, spec in self._specs.items():
                self._stores[name] = RocksStore(self._columns[name])
                self._positions[name] = read_position(self._db, spec.disk_name, self._path)

    def _open(self, rows: Callable[[RocksMemory], Options]) -> None:
        with converted_errors():
            self._db = self._opened(rows)
            for name, spec in self._specs.items():
                family = family_of(spec.disk_name)
                self._columns[name] = self._db.get_column_family(family)
                self._handles[name] = self._db.get_column_family_handle(family)
        self._open_list = open_file_list(self._path)
        self._stored_list: StoredFileList | None = None

    def _reopen(self, rows: Callable[[RocksMemory], Options]) -> None:
        """Reopen the files with other memtables, because RocksDB cannot change them while open."""
        self._release_stores()
        self._close_open_list()
        with converted_errors():
            self._db.close()
        self._open(rows)
        for name, store in self._stores.items():
            store.move(self._columns[name])

    def _release_stores(self) -> None:
        # RocksDB closes when its last reference is released, including local variables.
        for store in self._stores.values():
            store.close()
        self._columns.clear()
        self._handles.clear()

    def _opened(self, rows: Callable[[RocksMemory], Options]) -> Rdict:
        options = row_options(self._memory)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_max_background_jobs(2)
        options.set_max_total_wal_size(_WAL_BYTES)
        options.set_keep_log_file_num(2)
        store_families = [family_of(spec.disk_name) for spec in self._specs.values()]
        require_readable(self._path)
        exists = (self._path / "CURRENT").exists()
        existing = Rdict.list_cf(str(self._path), options) if exists else []
        families = dict.fromkeys([*store_families, *(f for f in existing if f != _META)])
        self._families = list(families)
        return Rdict(
            str(self._path),
            options,
            column_families={family: rows(self._memory) for family in families},
        )

    # Conversion of rows that another release, or another version of the application, has written in
    # another format. The rows of only one format are used: those of the latest position. The other
    # rows are deleted. A crash leaves the other position, so the next opening starts again.

    def _convert_other_formats(self) -> None:
        for spec in self._specs.values():
            others = self._other_formats(spec)
            latest: tuple[int, str] | None = None
            for disk_name in others:
                with converted_errors():
                    position = read_position(self._db, disk_name, self._path)
                    layout = read_layout(self._db, disk_name)
                if position is not None and layout in (None, spec.layout):
                    latest = max(latest or (-1, ""), (position.wall_ms, disk_name))
            own = self._positions[spec.name]
            if latest is not None and (own is None or own.wall_ms < latest[0]):
                self._convert(spec, latest[1])
            for disk_name in others:
                self._delete_format(disk_name)

    def _other_formats(self, spec: StoreSpec) -> list[str]:
        """Return the names on disk of the other formats of a store."""
        names = []
        for family in self._families:
            disk_name = family.removeprefix(_FAMILY_PREFIX)
            if disk_name == spec.disk_name:
                continue
            with suppress(ValueError):  # another store
                segment_ms_in(spec.name, disk_name)
                names.append(disk_name)
        return names

    def _convert(self, spec: StoreSpec, disk_name: str) -> None:
        with converted_errors():
            position = read_position(self._db, disk_name, self._path)
            rows = RocksStore(self._db.get_column_family(family_of(disk_name)))
        assert position is not None, disk_name
        _log.info("rows_converted", store=spec.name, path=str(self._path))
        self.drop_store(spec.name)
        options: Any = WriteOptions()
        options.disable_wal = True
        changes = layout_of(spec.layout, segment_ms_in(spec.name, disk_name)).changes(rows)
        while batch := list(islice(changes, _CONVERTED_ROWS)):
            with converted_errors():
                self._db.write(self._batch({spec.name: spec.rows.rows(batch)}, {}), options)
        rows.close()
        self._flush()
        self.write({}, {spec.name: position})

    def _delete_format(self, disk_name: str) -> None:
        with converted_errors():
            self._db.delete(_POSITION_PREFIX + disk_name.encode())
            columns = self._db.get_column_family(family_of(disk_name))
        rows = RocksStore(columns)
        last = next(rows.scan(reverse=True), None)
        rows.close()
        if last is not None:
            with converted_errors():
                columns.delete_range(b"", last[0] + b"\0")

    def _require_complete(self, open_list: OpenFileList | None) -> None:
        with converted_errors():
            stored = stored_file_list(self._db)
        if stored is not None and stored.is_damaged(open_list):
            raise StoreCorruptedError(
                f"the list of files of {self._path} is truncated or damaged, so rows may be missing"
            )

    def _check_format(self) -> None:
        stored_format = self._db.get(_FORMAT_KEY)
        if stored_format is None and next(iter(self._db.keys()), None) is None:
            # New, or its creator died before this line; rows are written only later.
            self._db[_FORMAT_KEY] = b"%d" % FORMAT_VERSION
            return
        stored_format = stored_format or b"none"
        if stored_format != b"%d" % FORMAT_VERSION:
            raise StateFormatError(
                f"{self._path} has format {stored_format.decode(errors='replace')} and this "
                f"release supports {FORMAT_VERSION}; run the release that wrote it, or remove the "
                "directory to restore the state from its changelogs"
            )

    def store(self, name: str) -> RocksStore:
        self._require_store(name)
        return self._stores[name]

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        if self._restored is not None:
            raise ValueError("a bulk restore is in progress; end it before writing")
        self._write(self._batch(deltas, positions), positions)

    def _write(self, batch: WriteBatch, positions: Mapping[str, Position]) -> None:
        stored = self._list_to_store()
        if stored is not None and stored is not self._stored_list:
            batch[_FILES_KEY] = stored.encode()
        if positions and self._is_marked:
            del batch[_RESTORING_KEY]
        with converted_errors():
            self._db.write(batch)
        self._stored_list = stored
        self._positions.update(positions)
        self._is_marked = self._is_marked and not positions

    def _list_to_store(self) -> StoredFileList | None:
        """Return the stored description itself if the MANIFEST has not grown."""
        if self._open_list is None:
            return None
        size = self._open_list.size_now()
        if self._stored_list is not None and self._stored_list.size == size:
            return self._stored_list
        return StoredFileList(self._open_list.listed.name, size, self._open_list.checksum(size))

    def position(self, store_name: str) -> Position | None:
        self._require_store(store_name)
        return self._positions[store_name]

    def begin_restore(self) -> None:
        with converted_errors():
            self._db[_RESTORING_KEY] = b""
        self._is_marked = True
        for name, position in self._positions.items():
            if position is None:
                self._empty(name)
        self._restored = set()
        self._is_order_known = False

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        restored = self._require_restore()
        if not self._is_order_known:
            self._choose_memtables(deltas)
        batch = self._batch(deltas, {})
        restored.update(deltas)
        options: Any = WriteOptions()
        options.disable_wal = True
        with converted_errors():
            self._db.write(batch, options)

    def _choose_memtables(self, deltas: Mapping[str, Delta]) -> None:
        """Reopen with vector memtables unless the restored rows come in key order."""
        keys = [key for delta in deltas.values() for key, _ in delta[:_SAMPLED_ROWS]]
        if len(keys) < _SAMPLED_ROWS:
            return
        self._is_order_known = True
        ascents = sum(map(lt, keys, keys[1:]))
        if ascents < _ASCENDING_SHARE * len(keys):
            self._flush()  # the log has nothing of a restore
            self._reopen(bulk_options)
            self._is_bulk = True

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        without_position = self._require_restore() - positions.keys()
        if without_position:
            raise ValueError(
                f"stores {sorted(without_position)} were restored and have no position"
            )
        self._flush()
        if self._is_bulk:
            self._reopen(row_options)
            self._is_bulk = False
        self._restored = None
        self.write({}, positions)

    def _flush(self) -> None:
        # Flush all column families: an abandoned restore may have written to other stores.
        with converted_errors():
            for name in self._columns:
                # A variable would stay in an error's traceback and keep the files open.
                self._columns[name].flush(True)

    def drop_store(self, name: str) -> None:
        self._require_store(name)
        # Delete the position first: rows without a position are not used.
        with converted_errors():
            self._db.delete(_POSITION_PREFIX + self._specs[name].disk_name.encode())
        self._positions[name] = None
        self._empty(name)

    def close(self) -> None:
        self._release_stores()
        self._stores.clear()
        self._close_open_list()
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as error:  # unflushed rows are in RocksDB's log or in the changelog
            _log.warning(
                "state_close_failed", path=str(self._path), reason=str(error), advice=_CLOSE_FAILED
            )

    def _close_open_list(self) -> None:
        if self._open_list is not None:
            self._open_list.close()
            self._open_list = None

    def _batch(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> WriteBatch:
        for name in (*deltas, *positions):
            self._require_store(name)
        batch = WriteBatch(raw_mode=True)
        for name, delta in deltas.items():
            batch.set_default_column_family(self._handles[name])
            if isinstance(delta, RangeDelta):
                # rocksdict ignores the batch's default column family here.
                batch.delete_range(delta.start, delta.end, self._handles[name])
            for key, value in delta:
                if value is None:
                    del batch[key]
                else:
                    batch[key] = value
        batch.set_default_column_family(None)
        for name, p in positions.items():
            batch[_POSITION_PREFIX + self._specs[name].disk_name.encode()] = _encoded(p)
        return batch

    def _empty(self, name: str) -> None:
        # A dropped column family can crash a RocksDB secondary (in `TryCatchUpWithPrimary`).
        try:
            last = next(self._stores[name].scan(reverse=True), None)
            if last is not None:
                with converted_errors():
                    self._columns[name].delete_range(b"", last[0] + b"\0")
        except StoreCorruptedError:
            self._recreate(name)

    def _recreate(self, name: str) -> None:
        # Dropping the column family removes corrupt files, too.
        family = family_of(self._specs[name].disk_name)
        with converted_errors():
            # After a crash between the two calls, the next open creates the missing family.
            self._db.drop_column_family(family)
            self._columns[name] = self._db.create_column_family(family, row_options(self._memory))
            self._handles[name] = self._db.get_column_family_handle(family)
        self._stores[name].move(self._columns[name])

    def _require_restore(self) -> set[str]:
        if self._restored is None:
            raise ValueError("no bulk restore is in progress; call begin_restore first")
        return self._restored

    def _require_store(self, name: str) -> None:
        if name not in self._columns:
            raise UnknownStoreError(
                f"this task has no persistent store {name!r}; it has {sorted(self._columns)}"
            )


def stored_file_list(db: Rdict) -> StoredFileList | None:
    stored = db.get(_FILES_KEY)
    return None if stored is None else StoredFileList.decode(stored)


def is_restoring(db: Rdict) -> bool:
    """Return whether a bulk restore is in progress, or was when its process died."""
    return db.get(_RESTORING_KEY) is not None


def read_position(db: Rdict, name: str, path: Path) -> Position | None:
    data = db.get(_POSITION_PREFIX + name.encode())
    if data is None:
        return None
    try:
        topic_id, offset, commit_id, wall_ms, *last = orjson.loads(data)
        return Position(topic_id, offset, commit_id, wall_ms, LastRecord(*last) if last else None)
    except (TypeError, ValueError) as error:
        raise StoreCorruptedError(
            f"the position of store {name!r} in {path} cannot be read: {error}"
        ) from error


def _encoded(position: Position) -> bytes:
    # Without a last record the format is that of older releases.
    last = position.last or ()
    fields = (position.topic_id, position.offset, position.commit_id, position.wall_ms)
    return orjson.dumps([*fields, *last])


def family_of(store: str) -> str:
    # RocksDB's own column family is named default, and a store may have that name.
    return _FAMILY_PREFIX + store
