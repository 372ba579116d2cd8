"""Sink of rows to an SQLite table, with the positions in the same file."""

from __future__ import annotations

import dataclasses
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from headrace.streams.connectors.locations import require_creatable
from headrace.topology.external_sink import (
    SinkBatch,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.operators.columns import (
    Columns,
    Row,
    Types,
    as_json,
    describe_write_error,
    require_bool,
    utc,
)
from headrace.topology.windows import duration_ms

# Shared by the SQL sinks: quoted names, created tables, and the table of positions.
#
# `mark` is the placeholder of a parameter: ``?``, or ``%s`` for psycopg.


POSITIONS = "headrace_positions"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def full_name(table: str) -> str:
    """Return the quoted name of a table, which may include its schema."""
    return ".".join(quoted(part) for part in table.split("."))


def definition(table: str, columns: Columns, types: Mapping[type, str], otherwise: str) -> str:
    """Return a CREATE statement; `types` maps Python types; `otherwise` is the default."""
    lines = [
        f"{quoted(name)} {kind if isinstance(kind, str) else types.get(kind, otherwise)}"
        f"{'' if name in columns.nullable or kind is object else ' NOT NULL'}"
        for name, kind in columns.types.items()
    ]
    if columns.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, columns.key))})")
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(lines)})"


def on_conflict(columns: Columns) -> str:
    key = ", ".join(map(quoted, columns.key))
    if not columns.others:
        return f" ON CONFLICT ({key}) DO NOTHING"
    changes = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in columns.others)
    return f" ON CONFLICT ({key}) DO UPDATE SET {changes}"


def positions_table(text: str, number: str) -> str:
    """Return the CREATE statement of the table of positions, with the database's types."""
    return (
        f"CREATE TABLE IF NOT EXISTS {POSITIONS} (name {text}, source {text}, partition INTEGER, "
        f"next {number} NOT NULL, PRIMARY KEY (name, source, partition))"
    )


def positions_query(mark: str = "?") -> str:
    """Return the query of partitions and positions; its parameters are a sink name and a source."""
    return f"SELECT partition, next FROM {POSITIONS} WHERE name = {mark} AND source = {mark}"  # noqa: S608


KEEPERS = f"SELECT DISTINCT name FROM {POSITIONS}"  # noqa: S608
"""Query of all sink names that have positions."""


def sink_names_query(table: str) -> str:
    """Return the query of all sink names that have positions; no rows if the table is empty."""
    return f"{KEEPERS} WHERE EXISTS (SELECT 1 FROM {table})"  # noqa: S608


def position_update(name: str, batch: SinkBatch, mark: str = "?") -> tuple[str, tuple[Any, ...]]:
    """Return a statement that changes a row only if the position is as expected."""
    key = (name, batch.source, batch.partition)
    if batch.expected is None:
        marks = ", ".join([mark] * 4)
        statement = f"INSERT INTO {POSITIONS} VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608
        return statement, (*key, batch.next)
    statement = (
        f"UPDATE {POSITIONS} SET next = {mark} WHERE name = {mark} AND source = {mark} "  # noqa: S608
        f"AND partition = {mark} AND next = {mark}"
    )
    return statement, (batch.next, *key, batch.expected)


def require_columns(columns: Columns, existing: Collection[str], where: str = "") -> None:
    """Raise SinkUnusableError if a table lacks columns; `where` follows its name in the error."""
    missing = [name for name in columns.names if name not in existing]
    if missing:
        raise SinkUnusableError(
            f"table {columns.table}{where} has no column {', '.join(missing)}. Use its columns "
            f"{', '.join(existing)}"
        )


def require(module: str, sink: str, extra: str) -> Any:
    """Import a module; raise SinkUnusableError if its extra is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SinkUnusableError(
            f"{sink} requires {module.partition('.')[0]}. Run: pip install 'headrace[{extra}]'"
        ) from error


def fenced(batch: SinkBatch, where: str = POSITIONS) -> SinkFencedError:
    return SinkFencedError(
        f"partition {batch.partition} of {batch.source} is not at {batch.expected} in {where}: "
        "another worker has written, or the result of a commit was lost"
    )


_TYPES: Mapping[type, str] = {
    bool: "INTEGER",
    int: "INTEGER",
    float: "REAL",
    bytes: "BLOB",
    object: "",
}
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_COLUMN = re.compile(r"constraint failed: .*?\.(\w+)$")


class SqliteSink:
    """Sink that writes rows to an SQLite table: appended, or upserted by key.

    Several workers can write to the same file, in turns. Types that SQLite lacks are written as
    text: times as ISO 8601 in UTC; lists, mappings and objects with fields as JSON.

    Args:
        path: the file; it is created if it does not exist.
        table: the table's name.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name.
        key: the key columns, which must be a primary key or unique; without them rows are appended.
        row: called as ``row(key, value)``; returns the object that contains the columns. None takes
            them from the value and the key.
        create: whether to create the table if it does not exist.
        timeout: time for which an attempt waits, and blocks the worker, while another writer has
            the file locked; the attempt is repeated later.

    Raises:
        TopologyError: the columns and the key do not match.

    Examples:
        >>> import tempfile
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> path = tempfile.mkdtemp() + "/words.db"
        >>> columns = {"word": str, "count": int}
        >>> sink = SqliteSink(path, "counts", columns, key="word", create=True)
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string)
        >>> words.group_by_key().count(store="counts").to_sink(sink, name="keep-counts")
        >>> with TopologyTestDriver(builder.build(), real_sinks=True) as driver:
        ...     driver.input("words").send_many([("rose", 1), ("is", 1), ("rose", 1)])
        >>> sqlite3.connect(path).execute("SELECT * FROM counts ORDER BY word").fetchall()
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
        timeout: timedelta = timedelta(milliseconds=200),
    ) -> None:
        self._path = str(path)
        self._columns = Columns(table, columns, key, row)
        self.keyed = bool(self._columns.key)
        self._create = require_bool("create", create)
        self._timeout_s = duration_ms("timeout", timeout, at_least=0) / 1000
        self._was_open = False

    def __repr__(self) -> str:
        return f"SqliteSink({self._path!r}, {self._columns.table!r})"

    def open(self, name: str, /) -> _SqliteConnection:
        """Open the file, and check that the table has the columns."""
        if not self._was_open:
            require_creatable(Path(self._path))
        before = _identity(self._path)
        with _converted(self._path):
            # The worker ensures that only one thread uses it at a time.
            database = sqlite3.connect(
                self._path,
                timeout=self._timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._prepare(database)
                files = _DatabaseFiles(self._path)
                if before is not None:
                    files.require(before)
            except BaseException:
                database.close()
                raise
        self._was_open = True
        return _SqliteConnection(database, name, self._columns, files)

    def _prepare(self, database: sqlite3.Connection) -> None:
        # With a write-ahead log, readers and the writer do not block each other.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(positions_table("TEXT", "INTEGER") + " WITHOUT ROWID")
        if self._create:
            table = quoted(self._columns.table)
            database.execute(definition(table, self._columns, _TYPES, "TEXT"))
        table = self._columns.table
        existing = [row[1] for row in database.execute(f"PRAGMA table_info({quoted(table)})")]
        if not existing:
            raise SinkUnusableError(
                f"table {table} does not exist in {self._path}. Create it, or give create=True"
            )
        require_columns(self._columns, existing, f" of {self._path}")


class _SqliteConnection:
    def __init__(
        self, database: sqlite3.Connection, name: str, columns: Columns, files: _DatabaseFiles
    ) -> None:
        self._database = database
        self._name = name
        self._columns = columns
        self._files = files
        self._path = files.path
        names = ", ".join(map(quoted, columns.names))
        marks = ", ".join("?" * len(columns.names))
        self._insert = f"INSERT INTO {quoted(columns.table)} ({names}) VALUES ({marks})"  # noqa: S608
        if columns.key:
            self._insert += on_conflict(columns)
        named = " AND ".join(f"{quoted(name)} = ?" for name in columns.key)
        self._delete = f"DELETE FROM {quoted(columns.table)} WHERE {named}"  # noqa: S608

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        with _converted(self._path):
            found = dict(self._database.execute(positions_query(), (self._name, source)).fetchall())
        self._files.require_same()
        return {partition: found[partition] for partition in partitions if partition in found}

    def keepers(self) -> Sequence[str]:
        statement = sink_names_query(quoted(self._columns.table))
        with _converted(self._path):
            return [name for (name,) in self._database.execute(statement)]

    def write(self, batch: SinkBatch, /) -> None:
        upserted, deleted = self._encoded(batch.rows)
        with _converted(self._path, self._columns, lambda: self._culprit(batch.rows)):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._files.require_same()
                self._move(batch)
                self._database.executemany(self._insert, upserted)
                if deleted:
                    self._database.executemany(self._delete, deleted)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _encoded(
        self, rows: Sequence[SinkRow]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        columns = self._columns
        if not columns.key:
            return [_encode(columns, row, columns.values(row)) for row in rows], []
        upserted, deleted = columns.last_of_each_key(rows)
        return (
            [_encode(columns, row, columns.values(row)) for row in upserted],
            [_encode(columns, row, columns.key_of(row), columns.key) for row in deleted],
        )

    def _culprit(self, rows: Sequence[SinkRow]) -> SinkRefusedError | None:
        """Return an error for the first value that SQLite cannot bind."""
        columns = self._columns
        for row in rows:
            is_gone = bool(columns.key) and row.value is None
            names = columns.key if is_gone else columns.names
            values = columns.key_of(row) if is_gone else columns.values(row)
            for name, value in zip(names, _encode(columns, row, values, names), strict=True):
                reason = _unbound(value)
                if reason is not None:
                    return columns.refused(reason, name, row)
        return None

    def _move(self, batch: SinkBatch) -> None:
        if self._database.execute(*position_update(self._name, batch)).rowcount != 1:
            raise fenced(batch, f"{POSITIONS} of {self._path}")

    def close(self) -> None:
        self._database.close()


_Identity = tuple[int, int]
"""Device and inode of a file."""


class _DatabaseFiles:
    """Identity of a connection's open files: SQLite keeps writing to replaced files."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._log_path = os.path.realpath(path) + "-wal"
        self._identity = _identity(path)
        self._log_identity = _identity(self._log_path)

    def require(self, identity: _Identity) -> None:
        """Raise SinkUnavailableError if the connection has opened another file."""
        if self._identity != identity:
            raise self._replaced(self.path)

    def require_same(self) -> None:
        """Raise SinkUnavailableError if files were replaced: positions must be read again."""
        now = _identity(self.path)
        if now is None or now != self._identity:
            raise self._replaced(self.path)
        if self._log_identity not in (None, _identity(self._log_path)):
            raise self._replaced(self._log_path)

    def _replaced(self, path: str) -> SinkUnavailableError:
        exists = _identity(path) is not None
        return SinkUnavailableError(
            f"{path} was {'replaced' if exists else 'deleted'} while it was open. Stop the "
            "application before you replace the file"
        )


def _identity(path: str) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _iso(moment: datetime) -> str:
    return utc(moment).isoformat()


_WRITTEN: Mapping[type, Callable[[Any], Any]] = {
    bool: int,
    datetime: _iso,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: str,
    UUID: str,
    dict: as_json,
    list: as_json,
    tuple: as_json,
}
_PLAIN = frozenset({type(None), int, float, str, bytes})
_NUMBERS = frozenset({bool, int, float})
_NO_NUMBERS = frozenset({str, bytes})


def _writer_of(value: Any) -> Callable[[Any], Any] | None:
    """Return the encoder of a value by its class; None if the value cannot be encoded."""
    if isinstance(value, Enum):
        return _of_enum
    has_fields = dataclasses.is_dataclass(value) or hasattr(type(value), "__struct_fields__")
    if has_fields or isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return as_json
    return None


def _of_enum(value: Enum) -> Any:
    inner = value.value
    return _WRITTEN.get(type(inner), _same)(inner)


def _same(value: Any) -> Any:
    return value


def _encode(
    columns: Columns, row: SinkRow, values: tuple[Any, ...], names: Sequence[str] = ()
) -> tuple[Any, ...]:
    """Return the values encoded for SQLite; raise if a value does not match its column's type."""
    encoded = _bindable(columns, row, values, names)
    for name, value in zip(names or columns.names, encoded, strict=True):
        # SQLite itself silently stores any value in any column.
        if type(value) in _NO_NUMBERS and columns.types[name] in _NUMBERS and not _is_number(value):
            kind = _TYPES[cast("type", columns.types[name])]
            reason = f"a {type(value).__name__} that is not a number does not fit into {kind}"
            raise columns.refused(f"{reason}; {columns.advice(name)}", name, row)
    return encoded


def _is_number(value: str | bytes) -> bool:
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None


def _bindable(
    columns: Columns, row: SinkRow, values: tuple[Any, ...], names: Sequence[str]
) -> tuple[Any, ...]:
    if all(type(value) in _PLAIN and value == value for value in values):
        return values
    encoded = []
    for name, value in zip(names or columns.names, values, strict=True):
        write = _WRITTEN.get(type(value))
        if write is None and type(value) not in _PLAIN:
            write = _writer_of(value)
        if write is not None:
            try:
                value = write(value)
            except Exception as error:  # the value's own class may raise anything
                raise columns.refused(describe_write_error(error), name, row) from error
        if not isinstance(value, (int, float, str, bytes, type(None))):
            reason = f"SQLite has no type for a {type(value).__name__}; {columns.advice(name)}"
            raise columns.refused(reason, name, row)
        if value != value:
            reason = f"SQLite has no NaN, and would take it for NULL; {columns.advice(name)}"
            raise columns.refused(reason, name, row)
        encoded.append(value)
    return tuple(encoded)


def _unbound(value: Any) -> str | None:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return "a number has more than 64 bits"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return describe_write_error(error)
    return None


@contextmanager
def _converted(
    path: str,
    columns: Columns | None = None,
    culprit: Callable[[], SinkRefusedError | None] | None = None,
) -> Iterator[None]:
    """Convert errors of SQLite, which quote no row; `culprit` finds a value that was not bound."""
    table = None if columns is None else columns.table
    try:
        yield
    except sqlite3.IntegrityError as error:
        column = _COLUMN.search(str(error))
        name = None if column is None else column[1]
        raise SinkRefusedError(str(error), table=table, column=name) from error
    except (sqlite3.DataError, OverflowError, UnicodeEncodeError) as error:
        found = culprit() if culprit is not None else None
        reason = str(error) if isinstance(error, sqlite3.DataError) else describe_write_error(error)
        raise found or SinkRefusedError(reason, table=table) from error
    except sqlite3.OperationalError as error:
        raise _of_file(error, path, columns) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise  # of the program
        text = f"{path}: {error}. Name another file, or restore the file from a backup"
        raise SinkUnusableError(text) from error


def _of_file(error: sqlite3.OperationalError, path: str, columns: Columns | None) -> Exception:
    text = str(error)
    if "ON CONFLICT" in text and columns is not None:
        key = ", ".join(columns.key)
        return SinkUnusableError(
            f"{path}: table {columns.table} needs a primary key or a unique index on {key}: {text}"
        )
    if "no such" in text or "ON CONFLICT" in text or "has no column" in text:
        return SinkUnusableError(f"{path}: {text}")
    return SinkUnavailableError(f"{path}: {text}")
