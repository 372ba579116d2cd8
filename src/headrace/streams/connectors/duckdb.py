"""Sink of rows to a DuckDB table, with positions in the same file; needs `duckdb` and `pyarrow`.

A process that has the file open locks out all other processes, even readers. The file is therefore
only open during a write, and rows are collected so that writes are few.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

from headrace.streams.connectors.arrow import ArrowColumns, ArrowRows, is_alike
from headrace.streams.connectors.locations import require_creatable
from headrace.streams.connectors.sqlite import (
    POSITIONS,
    definition,
    fenced,
    full_name,
    on_conflict,
    position_update,
    positions_query,
    positions_table,
    quoted,
    require,
    sink_names_query,
)
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import (
    SinkBatch,
    SinkBatching,
    SinkRefusedError,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.operators.columns import Row, Types, require_bool
from headrace.topology.windows import duration_ms

_TYPES: Mapping[type, str] = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    bytes: "BLOB",
    datetime: "TIMESTAMPTZ",
    date: "DATE",
    time_of_day: "TIME",
    timedelta: "INTERVAL",
    Decimal: "DECIMAL(38, 9)",
    UUID: "UUID",
}
_POLL_S = 0.01
_COLUMN = re.compile(r"NOT NULL constraint failed: .*?\.(?:\"(.+?)\"|(\w+))\s*$", re.M)
_UNUSABLE = ("CatalogException", "BinderException", "ParserException", "SerializationException",
             "PermissionException", "ConnectionException")  # fmt: skip
_REFUSED = ("ConstraintException", "ConversionException", "OutOfRangeException",
            "InvalidInputException", "InvalidTypeException", "TypeMismatchException",
            "SyntaxException")  # fmt: skip
_CONSTRAINTS = (
    ("not null", "NOT NULL constraint failed"),
    ("foreign key", "FOREIGN KEY constraint failed"),
    ("duplicate key", "PRIMARY KEY or UNIQUE constraint failed"),
)
_BUSY = ("Could not set lock", "Unique file handle conflict")
_NO_DATABASE = ("not a valid DuckDB database", "Is a directory", "older version", "newer version")


class DuckDbSink:
    """Sink that writes rows to a DuckDB table: appended, or upserted by key.

    Rows and positions are a single transaction. Several workers can write to the same file in
    turns, and other processes can read it between the writes.

    Args:
        path: the file; it is created if it does not exist.
        table: the table's name, with its schema if it is not in the search path.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name: a
            Python type, or a DuckDB type name such as ``"DECIMAL(12, 2)"``.
        key: the key columns, which must be a primary key or unique; without them rows are appended.
        row: called as ``row(key, value)``; returns the object that contains the columns. None takes
            them from the value and the key.
        create: whether to create the table if it does not exist.
        every: maximum time to collect rows for a write.
        max_rows: number of rows that triggers an earlier write.
        timeout: time for which an attempt waits, and blocks the worker, if another process has the
            file open; the attempt is repeated later.

    Raises:
        TopologyError: the columns and the key do not match.

    Examples:
        >>> import tempfile, duckdb
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> path = tempfile.mkdtemp() + "/words.duckdb"
        >>> columns = {"word": str, "count": int}
        >>> sink = DuckDbSink(path, "counts", columns, key="word", create=True)
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string)
        >>> words.group_by_key().count(store="counts").to_sink(sink, name="keep-counts")
        >>> with TopologyTestDriver(builder.build(), real_sinks=True) as driver:
        ...     driver.input("words").send_many([("rose", 1), ("is", 1), ("rose", 1)])
        >>> duckdb.connect(path).execute("FROM counts ORDER BY word").fetchall()
        [('is', 1), ('rose', 2)]
    """

    def __init__(
        self,
        path: str | Path,
        table: str,
        columns: type | Types,
        *,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        create: bool = False,
        every: timedelta = timedelta(seconds=1),
        max_rows: int = 100_000,
        timeout: timedelta = timedelta(milliseconds=200),
    ) -> None:
        self._path = str(path)
        if self._path.startswith(":memory:"):
            raise TopologyError(
                f"{self._path} would be lost with the process, with its positions. Name a file"
            )
        self._columns = ArrowColumns(table, columns, key, row)
        self.keyed = bool(self._columns.key)
        for name in self._columns.arrow_types:
            raise TopologyError(
                f"the type of a column must not be of pyarrow (table {table}, column {name}). Use "
                "DuckDB's name, such as 'VARCHAR[]'"
            )
        self._create = require_bool("create", create)
        self._timeout_s = duration_ms("timeout", timeout, at_least=0) / 1000
        self.batching = SinkBatching(every=every, max_rows=max_rows)
        self._was_open = False

    def __repr__(self) -> str:
        return f"DuckDbSink({self._path!r}, {self._columns.table!r})"

    def open(self, name: str, /) -> _DuckDbConnection:
        """Check that the file and the table exist and match."""
        for module in ("duckdb", "pyarrow"):
            require(module, "DuckDbSink", "duckdb")
        if not self._was_open:
            require_creatable(Path(self._path))
        file = _DuckDbFile(self._path, self._timeout_s)
        with file.opened() as database, _converted(self._path, self._columns):
            rows = self._prepare(database)
        self._was_open = file.is_made = True
        return _DuckDbConnection(file, name, rows, self.batching)

    def _prepare(self, database: Any) -> ArrowRows:
        columns = self._columns
        database.execute(positions_table("VARCHAR", "BIGINT"))
        if self._create:
            database.execute(definition(full_name(columns.table), columns, _TYPES, "JSON"))
        table, names = full_name(columns.table), ", ".join(map(quoted, columns.names))
        # The Arrow types in which DuckDB returns a column are those in which it takes values.
        found = database.sql(f"SELECT {names} FROM {table} LIMIT 0").to_arrow_table().schema  # noqa: S608
        known = {
            name: found.field(name).type
            for name, kind in columns.types.items()
            if isinstance(kind, str) or is_alike(kind, found.field(name).type)
        }
        return ArrowRows(columns, known)


@cache
def _turn(path: str) -> threading.Lock:
    """Return a file's lock for threads: DuckDB's own lock belongs to the process."""
    del path
    return threading.Lock()


class _DuckDbFile:
    """DuckDB file that is open only during use."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path = path
        self.is_made = False
        """Whether the file existed: DuckDB would re-create a deleted file without an error."""
        self._timeout_s = timeout_s

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the file as soon as no other process or thread has it open."""
        turn = _turn(os.path.realpath(self.path))
        if not turn.acquire(timeout=self._timeout_s):
            raise SinkUnavailableError(f"{self.path}: another thread has it open")
        try:
            with _converted(self.path), closing(self._connected()) as database:
                yield database
        finally:
            turn.release()

    def _connected(self) -> Any:
        import duckdb

        deadline_s = time.monotonic() + self._timeout_s
        while True:
            if self.is_made and not os.path.exists(self.path):
                raise SinkUnavailableError(f"{self.path} was deleted")
            try:
                return duckdb.connect(self.path)
            except duckdb.Error as error:
                if not _is_busy(error) or time.monotonic() >= deadline_s:
                    raise
                time.sleep(_POLL_S)


class _DuckDbConnection:
    def __init__(
        self, file: _DuckDbFile, name: str, rows: ArrowRows, batching: SinkBatching
    ) -> None:
        self.batching = batching
        self._file = file
        self._name = name
        self._rows = rows
        columns = rows.columns
        names = ", ".join(map(quoted, columns.names))
        table = full_name(columns.table)
        self._insert = f"INSERT INTO {table} ({names}) SELECT {names} FROM headrace_rows"  # noqa: S608
        if columns.key:
            self._insert += on_conflict(columns)
        keys = ", ".join(map(quoted, columns.key))
        self._delete = f"DELETE FROM {table} WHERE ({keys}) IN (SELECT ({keys}) FROM headrace_keys)"  # noqa: S608

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        with self._file.opened() as database:
            found = dict(database.execute(positions_query(), [self._name, source]).fetchall())
        return {partition: found[partition] for partition in partitions if partition in found}

    def keepers(self) -> Sequence[str]:
        statement = sink_names_query(full_name(self._rows.columns.table))
        with self._file.opened() as database:
            return [name for (name,) in database.execute(statement).fetchall()]

    def write(self, batch: SinkBatch, /) -> None:
        columns = self._rows.columns
        upserted, removed = (
            columns.last_of_each_key(batch.rows) if columns.key else (batch.rows, [])
        )
        written, deleted = self._rows.table(upserted), self._rows.keys(removed) if removed else None
        with self._file.opened() as database, _converted(self._file.path, columns):
            database.execute("BEGIN TRANSACTION")
            self._move(database, batch)
            if upserted:
                database.register("headrace_rows", written)
                database.execute(self._insert)
            if deleted is not None:
                database.register("headrace_keys", deleted)
                database.execute(self._delete)
            # Closing the connection without it rolls the transaction back.
            database.execute("COMMIT")

    def _move(self, database: Any, batch: SinkBatch) -> None:
        if database.execute(*position_update(self._name, batch)).fetchone()[0] != 1:
            raise fenced(batch, f"{POSITIONS} of {self._file.path}")

    def close(self) -> None: ...


@contextmanager
def _converted(path: str, columns: ArrowColumns | None = None) -> Iterator[None]:
    """Convert errors of DuckDB to sink errors, without values that their messages may quote."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _as_sink_error(error, path, columns) from error


def _as_sink_error(error: Exception, path: str, columns: ArrowColumns | None) -> Exception:
    kind, text = type(error).__name__, str(error).strip().partition("\n")[0]
    if columns is not None and kind in _REFUSED:
        column = _COLUMN.search(str(error))
        name = None if column is None else column[1] or column[2]
        return SinkRefusedError(_reason(kind, text), table=columns.table, column=name)
    if _is_busy(error):
        return SinkUnavailableError(f"{path}: another process or thread has it open")
    if kind in _UNUSABLE:
        return SinkUnusableError(_unusable(text, path, columns))
    if kind == "IOException":
        if any(known in text for known in _NO_DATABASE):
            return SinkUnusableError(f"{path}: {text}. Name another file")
        return SinkUnavailableError(f"{path}: {text}")
    return SinkUnavailableError(f"{path}: {kind}")


def _is_busy(error: Exception) -> bool:
    """Return whether another process has the file open, or a thread of this process closes it."""
    return any(known in str(error) for known in _BUSY)


def _reason(kind: str, text: str) -> str:
    """Return the reason of a rejected row, without the key or value that the message may quote."""
    if "CHECK constraint" in text:
        return text.partition(": ")[2]
    return next((reason for known, reason in _CONSTRAINTS if known in text.lower()), kind)


def _unusable(text: str, path: str, columns: ArrowColumns | None) -> str:
    """Return the message of an error that needs a manual fix; it names only tables and columns."""
    if columns is not None and "conflict target" in text:
        key = ", ".join(columns.key)
        return f"{path}: table {columns.table} needs a primary key or a unique index on {key}"
    if columns is not None and text.startswith("Catalog Error: Table"):
        return f"table {columns.table} does not exist in {path}. Create it, or give create=True"
    return f"{path}: {text}"
