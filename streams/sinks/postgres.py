"""Rows in a table of PostgreSQL, with the positions in the same database; needs `psycopg`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from headrace.streams.sinks.sqlite import POSITIONS, on_conflict, quoted
from headrace.topology.external_sink import (
    SinkBatch,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.sinks.columns import Columns, Row, Types

_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    str: "text",
    bytes: "bytea",
    datetime: "timestamptz",
    date: "date",
    time: "time",
    timedelta: "interval",
    Decimal: "numeric",
    UUID: "uuid",
}
_LOCK = 0x6865_6164
"""Who makes tables waits for others who do: two at once would fail."""
_LINE = re.compile(r"COPY .*?, line (\d+)(?:, column ([^:]+))?")
_UNAVAILABLE = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of errors that may be none the next time: connections, roles, locks, resources."""

Conninfo = str | Callable[[], str]


class PostgresSink:
    """Writes rows to a table of PostgreSQL: appended with COPY, or under their keys.

    Rows and positions are one transaction; positions are in the table ``headrace_positions``,
    which is made where there is none. Times without a zone are in UTC, and what goes into columns
    of JSON is written as such.

    Args:
        conninfo: what libpq connects with, such as ``postgresql://host/shop``, or a function that
            returns it, called with each connection. What it leaves out is taken from the
            environment and from ``~/.pgpass``.
        table: its name, with a schema in front if it is not found without.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name.
        key: the columns that name a row, which must be its primary key or unique; without them rows
            are appended.
        row: called as ``row(key, value)``; returns what the columns are looked for in. None looks
            in the value and in the key.
        create: make the table where it is not there.
        timeout: how long a connection, a statement or a lock is waited for.

    Raises:
        TopologyError: the columns and the key do not fit.

    Example:
        >>> columns = {"word": str, "n": int}
        >>> sink = PostgresSink("postgresql://db/shop", "counts", columns, key="word")
        >>> sink.keyed, sink
        (True, PostgresSink('counts'))
    """

    def __init__(
        self,
        conninfo: Conninfo,
        table: str,
        columns: type | Types,
        *,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        create: bool = False,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._conninfo = conninfo
        self._columns = Columns(table, columns, key, row)
        self._create = create
        self._timeout = timeout

    def __repr__(self) -> str:
        # Who connects may have a password.
        return f"PostgresSink({self._columns.table!r})"

    @property
    def keyed(self) -> bool:
        """Whether it was given a key."""
        return bool(self._columns.key)

    def open(self, name: str, /) -> _Connection:
        """Connect, and see that the table is there."""
        psycopg = _psycopg()
        timeout_ms = int(self._timeout.total_seconds() * 1000)
        conninfo = self._conninfo() if callable(self._conninfo) else self._conninfo
        with _told():
            connection = psycopg.connect(
                conninfo,
                autocommit=True,
                connect_timeout=max(2, timeout_ms // 1000),
                tcp_user_timeout=timeout_ms,
            )
        try:
            with _told():
                for setting, value in _settings(timeout_ms):
                    connection.execute("SELECT set_config(%s, %s, false)", (setting, value))
                if self._create:
                    _make(connection, self._columns.table, _definition(self._columns))
                _make(connection, POSITIONS, _POSITIONS)
                types = self._types(connection)
            return _Connection(connection, name, self._columns, types)
        except BaseException:
            connection.close()
            raise

    def _types(self, connection: Any) -> list[str]:
        """The database's own names of the columns' types."""
        table = self._columns.table
        found = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                (_full(table),),
            ).fetchall()
        )
        missing = [name for name in self._columns.names if name not in found]
        if missing:
            raise SinkUnusableError(
                f"table {table} has no column {', '.join(missing)}; it has {', '.join(found)}"
            )
        return [found[name] for name in self._columns.names]


class _Connection:
    def __init__(self, connection: Any, name: str, columns: Columns, types: Sequence[str]) -> None:
        self._connection = connection
        self._name = name
        self._columns = columns
        self._encoders = [_ENCODERS.get(_plain(kind)) for kind in types]
        names = ", ".join(map(quoted, columns.names))
        table = _full(columns.table)
        self._copy = f"COPY {table} ({names}) FROM STDIN"
        # What is an array itself cannot be a row of one.
        self._by_row = any(kind.endswith("[]") for kind in types)
        given = ", ".join(f"%s::{kind}[]" for kind in types)
        marks = ", ".join(f"%s::{kind}" for kind in types)
        what = f"VALUES ({marks})" if self._by_row else f"SELECT * FROM unnest({given})"  # noqa: S608
        conflict = on_conflict(columns) if columns.key else ""
        self._upsert = f"INSERT INTO {table} ({names}) {what}{conflict}"
        kinds = dict(zip(columns.names, types, strict=True))
        key = ", ".join(map(quoted, columns.key))
        keys = ", ".join(f"%s::{kinds[name]}[]" for name in columns.key)
        self._delete = f"DELETE FROM {table} WHERE ({key}) IN (SELECT * FROM unnest({keys}))"  # noqa: S608

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        with _told():
            rows = self._connection.execute(
                f"SELECT partition, next FROM {POSITIONS} "  # noqa: S608
                "WHERE name = %s AND source = %s AND partition = ANY(%s)",
                (self._name, source, list(partitions)),
            )
            return dict(rows.fetchall())

    def write(self, batch: SinkBatch, /) -> None:
        columns = self._columns
        there, gone = columns.last_of_each_key(batch.rows) if columns.key else (batch.rows, [])
        values = [self._encoded(columns.values(row)) for row in there]
        keys = [self._encoded(columns.key_of(row), columns.key) for row in gone]
        with (
            _told(columns.table, there),
            self._connection.transaction(),
            self._connection.cursor() as cursor,
        ):
            self._move(cursor, batch)
            if values and not columns.key:
                with cursor.copy(self._copy) as copy:
                    for one in values:
                        copy.write_row(one)
            elif values and self._by_row:
                cursor.executemany(self._upsert, values)
            elif values:
                cursor.execute(self._upsert, list(map(list, zip(*values, strict=True))))
            if keys:
                cursor.execute(self._delete, list(map(list, zip(*keys, strict=True))))

    def _encoded(self, values: tuple[Any, ...], names: Sequence[str] = ()) -> tuple[Any, ...]:
        encoders = self._encoders
        if names:
            encoders = [encoders[self._columns.names.index(name)] for name in names]
        if not any(encoders):
            return values
        return tuple(
            value if encode is None or value is None else encode(value)
            for encode, value in zip(encoders, values, strict=True)
        )

    def _move(self, cursor: Any, batch: SinkBatch) -> None:
        """Move the position, if it is where it is believed to be; others wait for the row."""
        place = (self._name, batch.source, batch.partition)
        if batch.expected is None:
            cursor.execute(
                f"INSERT INTO {POSITIONS} VALUES (%s, %s, %s, %s) "  # noqa: S608
                "ON CONFLICT DO NOTHING",
                (*place, batch.next),
            )
        else:
            cursor.execute(
                f"UPDATE {POSITIONS} SET next = %s WHERE name = %s AND source = %s "  # noqa: S608
                "AND partition = %s AND next = %s",
                (batch.next, *place, batch.expected),
            )
        if cursor.rowcount != 1:
            raise SinkFencedError(
                f"partition {batch.partition} of {batch.source} is not at {batch.expected} in "
                f"{POSITIONS}: another worker has written, or an answer was lost"
            )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


_POSITIONS = (
    f"CREATE TABLE IF NOT EXISTS {POSITIONS} (name text, source text, partition integer, "
    "next bigint NOT NULL, PRIMARY KEY (name, source, partition))"
)


def _psycopg() -> Any:
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise SinkUnusableError(
            'PostgresSink needs psycopg; run: pip install "headrace[postgres]"'
        ) from error
    return psycopg


def _settings(timeout_ms: int) -> Iterator[tuple[str, str]]:
    """What a connection is bounded by: nobody who stands still keeps others from the positions."""
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        yield name, str(timeout_ms)
    yield "TimeZone", "UTC"


def _make(connection: Any, table: str, definition: str) -> None:
    """Make a table where it is not there, without a word of those who may not."""
    full = table if table == POSITIONS else _full(table)
    if connection.execute("SELECT to_regclass(%s)", (full,)).fetchone()[0] is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(definition)


def _full(table: str) -> str:
    return ".".join(quoted(part) for part in table.split("."))


def _definition(columns: Columns) -> str:
    lines = [
        f"{quoted(name)} {kind if isinstance(kind, str) else _TYPES.get(kind, 'jsonb')}"
        f"{'' if name in columns.nullable or kind is object else ' NOT NULL'}"
        for name, kind in columns.types.items()
    ]
    if columns.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, columns.key))})")
    return f"CREATE TABLE IF NOT EXISTS {_full(columns.table)} ({', '.join(lines)})"


def _plain(kind: str) -> str:
    return kind.partition("(")[0]


def _number(value: Any) -> Any:
    # A list of numbers is one of one kind of number.
    return Decimal(str(value)) if isinstance(value, (int, float)) else value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, (int, Decimal)) else value


_ENCODERS: Mapping[str, Callable[[Any], Any]] = {
    "json": json.dumps,
    "jsonb": json.dumps,
    "numeric": _number,
    "double precision": _real,
    "real": _real,
}


@contextmanager
def _told(table: str | None = None, rows: Sequence[SinkRow] = ()) -> Iterator[None]:
    """Say what an error of PostgreSQL asks for, without the values that its text may quote."""
    psycopg = _psycopg()
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise SinkUnavailableError(_reason(error)) from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state[:2] in _UNAVAILABLE:
            raise SinkUnavailableError(_reason(error)) from error
        if state.startswith(("42", "3D", "3F", "28")):
            raise SinkUnusableError(f"{_reason(error)}: {error.diag.message_primary}") from error
        if table is None:
            raise
        raise _refused(error, table, rows) from error
    except (TypeError, ValueError) as error:
        # What cannot be written as JSON.
        raise SinkRefusedError(f"it raises {type(error).__name__}", table=table) from error


def _refused(error: Any, table: str, rows: Sequence[SinkRow]) -> SinkRefusedError:
    reason = _reason(error)
    if error.diag.constraint_name:
        reason += f", constraint {error.diag.constraint_name}"
    column, offset = error.diag.column_name, None
    line = _LINE.search(error.diag.context or "")
    if line is not None:
        column = column or line[2]
        number = int(line[1]) - 1
        offset = rows[number].offset if number < len(rows) else None
    return SinkRefusedError(reason, table=table, column=column, offset=offset)


def _reason(error: Any) -> str:
    kind = type(error).__name__
    if error.sqlstate is None:
        # The client's own: of connections, which quote no row.
        text = str(error).strip().splitlines()
        is_connection = type(error).__name__ in ("OperationalError", "InterfaceError")
        return text[0] if text and is_connection else kind
    return f"{kind} ({error.sqlstate})"
