"""Sink of rows to a PostgreSQL table, with positions in the same database; needs `psycopg`."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from time import monotonic
from typing import Any
from uuid import UUID

from headrace.streams.connectors.sqlite import (
    KEEPERS,
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
    require_columns,
    sink_names_query,
)
from headrace.topology.errors import TopologyError, type_of
from headrace.topology.external_sink import (
    SinkBatch,
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
)
from headrace.topology.windows import duration_ms

# Columns of many rows as PostgreSQL array literals.
#
# psycopg selects an adapter for each single value, which takes longer than all other work.
#
# Hot path: `as_array` runs for each column of each batch.


_NONE = type(None)


def as_array(column: Sequence[Any]) -> str | list[Any]:
    """Return values as an array literal if all are integers, floats or strings; else as a list.

    >>> as_array([1, None, 3]), as_array(['a "b"', None])
    ('{1,NULL,3}', '{"a \\\\"b\\\\"",NULL}')
    >>> as_array([1, "a"])
    [1, 'a']
    """
    kinds = set(map(type, column))
    has_nulls = _NONE in kinds
    kinds.discard(_NONE)
    write = _WRITTEN.get(kinds.pop()) if len(kinds) == 1 else None
    if write is None:
        return list(column)
    if has_nulls:
        return "{" + ",".join("NULL" if v is None else write(v) for v in column) + "}"
    return "{" + ",".join(map(write, column)) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_WRITTEN: Mapping[type, Callable[[Any], str]] = {str: _quoted, int: str, float: repr}


# Conversion of PostgreSQL's errors, without the values that their messages may quote.


_LINE = re.compile(r"COPY .*?, line (\d+)(?:, column ([^:]+))?")
_UNAVAILABLE = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Error classes that a retry may fix: connections, transaction states, locks, resources."""

_TIMED_OUT = frozenset({"57014", "55P03"})
"""SQLSTATEs of a cancelled statement, and of a lock that was not available in time."""

_PERMANENT = (
    (re.compile(r'database "[^"]*" does not exist'), "Create it, or name another database"),
    (re.compile(r'role "[^"]*" does not exist'), "Create it, or name another user"),
    (
        re.compile(r"authentication failed|no password supplied"),
        "Correct the user or the password: in the address, in PGPASSWORD or in ~/.pgpass",
    ),
    (re.compile("no pg_hba.conf entry"), "Allow this host in the server's pg_hba.conf"),
    (re.compile("is not permitted to log in"), "Give it LOGIN, or name another user"),
    (re.compile("permission denied for database"), "Grant CONNECT, or name another user"),
)
"""Connection errors that a retry does not fix, with the fix of each."""
OPTION = re.compile(r"invalid (?:URI query parameter|connection option):? \"\w+\"")
_NO_ADAPTER = re.compile(r"cannot adapt type '(\w+)'")


def load_psycopg() -> Any:
    return require("psycopg", "PostgresSink", "postgres")


@contextmanager
def converted(
    columns: Columns | None = None,
    rows: Sequence[SinkRow] = (),
    culprit: Callable[..., SinkRefusedError | None] | None = None,
) -> Iterator[None]:
    """Convert errors without values that they may quote; `culprit` finds an unconverted value."""
    psycopg = load_psycopg()
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        timed_out = error.sqlstate in _TIMED_OUT
        raise SinkUnavailableError(reason_of(error), timed_out=timed_out) from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state[:2] in _UNAVAILABLE:
            raise SinkUnavailableError(reason_of(error)) from error
        if state.startswith(("42", "3D", "3F", "28")):
            raise SinkUnusableError(_unusable(error, columns)) from error
        if columns is None or culprit is None:
            raise
        refused = _refused(error, columns.table, rows)
        if refused.column is None:
            refused = culprit(is_client=not state) or refused
        raise refused from error
    except (TypeError, ValueError, ArithmeticError) as error:
        if columns is None or culprit is None:
            raise
        found = culprit(is_client=True)
        raise found or SinkRefusedError(describe_write_error(error), table=columns.table) from error


def _refused(error: Any, table: str, rows: Sequence[SinkRow]) -> SinkRefusedError:
    reason = reason_of(error) if error.sqlstate else client_s(error)
    if error.diag.constraint_name:
        reason += f", constraint {error.diag.constraint_name}"
    column, offset = error.diag.column_name, None
    line = _LINE.search(error.diag.context or "")
    if line is not None:
        column = column or line[2]
        number = int(line[1]) - 1
        offset = rows[number].offset if number < len(rows) else None
    return SinkRefusedError(reason, table=table, column=column, offset=offset)


def _unusable(error: Any, columns: Columns | None) -> str:
    """Return the message of an error that needs a manual fix; it names only tables and columns."""
    text = f"{reason_of(error)}: {error.diag.message_primary}"
    if columns is None and error.sqlstate == "42501":
        return f"{text}. Grant SELECT, INSERT and UPDATE on {POSITIONS}"
    if columns is None:
        return text
    table, key = columns.table, ", ".join(columns.key)
    if error.sqlstate == "42P10" and key:
        return f"table {table} needs a primary key or a unique constraint on {key}: {text}"
    if error.sqlstate == "42P01":
        return f"{text}. Create it, or give create=True"
    if error.sqlstate == "42501":
        rights = "INSERT, UPDATE, DELETE and SELECT" if key else "INSERT"
        return (
            f"{text}. Grant {rights} on {table}, SELECT, INSERT and UPDATE on {POSITIONS}, and "
            "CREATE on the schema if a table has to be created"
        )
    return text


def fix_of(text: str) -> str | None:
    """Return the fix of a connection error; None if a retry may succeed."""
    return next((fix for known, fix in _PERMANENT if known.search(text)), None)


def client_s(error: BaseException) -> str:
    """Return the message of an error of psycopg itself, without values."""
    text = str(error)
    kind = _NO_ADAPTER.search(text)
    if kind is not None:
        return f"psycopg cannot write a {kind[1]}. Use a column of jsonb, or write row="
    if "cannot contain NUL" in text:
        return "text with a NUL, which PostgreSQL does not have"
    if "lists of mixed types" in text:
        return "a list of values of several types"
    return describe_write_error(error)


def reason_of(error: Any) -> str:
    """Return the kind of an error, without values that its message may quote."""
    kind = type(error).__name__
    if error.sqlstate is None:
        # Raised by the client: messages about connections quote no row.
        text = str(error).strip().splitlines()
        is_connection = type(error).__name__ in ("OperationalError", "InterfaceError")
        return text[0] if text and is_connection else kind
    return f"{kind} ({error.sqlstate})"


# Connections with a time limit for each response.
#
# The server's own time-outs only limit its own work. They limit neither the wait for a server that
# hangs or whose host is lost, nor the wait behind a middlebox that drops packets.


GRACE_S = 1.0
"""Seconds beyond the server's own time-out, so that its error message usually arrives first."""


def bounded(psycopg: Any, timeout_ms: int) -> type[Any]:
    """Return a connection class that closes a connection after a response has timed out."""
    limit_s = timeout_ms / 1000 + GRACE_S

    class Bounded(psycopg.Connection):  # type: ignore[misc]
        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            return super().wait(self._limited(gen), *args, **options)

        def _limited(self, gen: Any) -> Generator[Any, Any, Any]:
            deadline_s = monotonic() + limit_s
            try:
                state = next(gen)
                while True:
                    is_ready = yield state
                    if not is_ready and monotonic() > deadline_s:
                        # A rollback would wait for the server again.
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no response within {limit_s:g} s")
                    state = gen.send(is_ready)
            except StopIteration as end:
                return end.value

    return Bounded


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
"""Advisory lock that serializes the creation of tables, which fails if it is concurrent."""
Conninfo = str | Callable[[], str]


class PostgresSink:
    """Sink that writes rows to a PostgreSQL table: appended with COPY, or upserted by key.

    Rows and positions are a single transaction; positions are in the table ``headrace_positions``,
    which is created if it does not exist. Times without a zone are in UTC. Values of JSON columns
    are encoded as JSON.

    Args:
        conninfo: connection string of libpq such as ``postgresql://host/shop``, or a function that
            returns it, called for each connection. Missing parts are taken from the environment and
            from ``~/.pgpass``.
        table: the table's name, with its schema if it is not in the search path.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name.
        key: the key columns, which must be a primary key or unique; without them rows are appended.
        row: called as ``row(key, value)``; returns the object that contains the columns. None takes
            them from the value and the key.
        create: whether to create the table if it does not exist.
        timeout: time limit of a connection attempt, a statement and a wait for a lock.

    Raises:
        TopologyError: the columns and the key do not match.

    Examples:
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
        timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        if not isinstance(conninfo, str) and not callable(conninfo):
            raise TopologyError(
                f"conninfo must be text such as 'postgresql://host/shop', not {type_of(conninfo)}"
            )
        self._conninfo = conninfo
        self._columns = Columns(table, columns, key, row)
        self.keyed = bool(self._columns.key)
        self._create = require_bool("create", create)
        self._timeout_ms = duration_ms("timeout", timeout, at_least=1)
        self._was_open = False

    def __repr__(self) -> str:
        # The connection string may contain a password.
        return f"PostgresSink({self._columns.table!r})"

    def open(self, name: str, /) -> _PostgresConnection:
        """Connect, and check that the table has the columns."""
        psycopg = load_psycopg()
        connection = self._connect(psycopg)
        try:
            with converted(self._columns):
                for setting, value in _settings(self._timeout_ms):
                    connection.execute("SELECT set_config(%s, %s, false)", (setting, value))
                if self._create:
                    _make(
                        connection,
                        self._columns.table,
                        definition(full_name(self._columns.table), self._columns, _TYPES, "jsonb"),
                    )
                _make(connection, POSITIONS, positions_table("text", "bigint"))
                types = self._types(connection)
            self._was_open = True
            return _PostgresConnection(connection, name, self._columns, types)
        except BaseException:
            connection.close()
            raise

    def _connect(self, psycopg: Any) -> Any:
        conninfo = self._conninfo() if callable(self._conninfo) else self._conninfo
        try:
            with converted():
                return bounded(psycopg, self._timeout_ms).connect(
                    conninfo,
                    autocommit=True,
                    connect_timeout=max(2, self._timeout_ms // 1000),
                    tcp_user_timeout=self._timeout_ms,
                )
        except psycopg.ProgrammingError as error:
            # The rest of its message may quote a password.
            option = OPTION.search(str(error))
            reason = f"has an {option[0]}" if option else "cannot be parsed"
            raise SinkUnusableError(
                f"the address {reason}. Write postgresql://USER@HOST:PORT/DATABASE, with special "
                "characters percent-encoded"
            ) from None
        except SinkUnavailableError as error:
            # After a successful connection before, the error may be temporary.
            fix = None if self._was_open else fix_of(str(error))
            if fix is None:
                raise
            raise SinkUnusableError(f"{error}. {fix}") from error

    def _types(self, connection: Any) -> list[str]:
        found = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                (full_name(self._columns.table),),
            ).fetchall()
        )
        require_columns(self._columns, found)
        return [found[name] for name in self._columns.names]


Named = tuple[SinkRow, Sequence[str], tuple[Any, ...]]
"""Row with the names of its columns, and its values."""


class _PostgresConnection:
    def __init__(self, connection: Any, name: str, columns: Columns, types: Sequence[str]) -> None:
        self._connection = connection
        self._name = name
        self._columns = columns
        self._types = types
        self._encoders = _encoders(types)
        self._of_key = _encoders([types[columns.names.index(name)] for name in columns.key])
        names = ", ".join(map(quoted, columns.names))
        table = full_name(columns.table)
        self._copy = f"COPY {table} ({names}) FROM STDIN"
        # Arrays cannot be elements of an array parameter.
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
        with converted():
            rows = self._connection.execute(
                f"{positions_query('%s')} AND partition = ANY(%s)",
                (self._name, source, list(partitions)),
            )
            return dict(rows.fetchall())

    def keepers(self) -> Sequence[str]:
        errors = load_psycopg().errors
        statement = sink_names_query(full_name(self._columns.table))
        with converted():
            try:
                found = self._connection.execute(statement)
            except errors.InsufficientPrivilege:  # appending requires no SELECT on the table
                found = self._connection.execute(KEEPERS)
            return [name for (name,) in found]

    def write(self, batch: SinkBatch, /) -> None:
        columns = self._columns
        upserted, removed = (
            columns.last_of_each_key(batch.rows) if columns.key else (batch.rows, [])
        )
        values = self._all_encoded(upserted, columns.all_values(upserted))
        keys = [self._encoded(row, columns.key_of(row), columns.key) for row in removed]

        def culprit(*, is_client: bool) -> SinkRefusedError | None:
            find = self._not_dumped if is_client else self._not_cast
            named = [(row, columns.names, one) for row, one in zip(upserted, values, strict=True)]
            named += [(row, columns.key, one) for row, one in zip(removed, keys, strict=True)]
            return find(named)

        try:
            with (
                converted(columns, upserted, culprit),
                self._connection.transaction(),
                self._connection.cursor() as cursor,
            ):
                if columns.key:
                    self._move(cursor, batch)
                    self._put(cursor, values, keys)
                else:
                    # No server time-out ends a COPY whose client hangs: it must not lock the
                    # position meanwhile.
                    self._append(cursor, values)
                    self._move(cursor, batch)
        except SinkRefusedError as error:
            # A fenced writer may violate a unique constraint, because its rows exist already.
            if self.positions(batch.source, [batch.partition]).get(batch.partition) != (
                batch.expected
            ):
                raise fenced(batch) from error
            if error.column in columns.names and error.reason.endswith(("(22P02)", "(22007)")):
                error.reason += f"; it is {self._types[columns.names.index(error.column)]}"
            raise

    def _append(self, cursor: Any, values: Sequence[tuple[Any, ...]]) -> None:
        if values:
            with cursor.copy(self._copy) as copy:
                for one in values:
                    copy.write_row(one)

    def _put(
        self, cursor: Any, values: Sequence[tuple[Any, ...]], keys: Sequence[tuple[Any, ...]]
    ) -> None:
        if values and self._by_row:
            cursor.executemany(self._upsert, values)
        elif values:
            cursor.execute(self._upsert, list(map(as_array, zip(*values, strict=True))))
        if keys:
            cursor.execute(self._delete, list(map(as_array, zip(*keys, strict=True))))

    def _all_encoded(
        self, rows: Sequence[SinkRow], values: Sequence[tuple[Any, ...]]
    ) -> Sequence[tuple[Any, ...]]:
        """Return the values encoded for the server; usually none needs encoding."""
        for at, _, plain in self._encoders:
            if not {plain, type(None)}.issuperset(map(type, map(itemgetter(at), values))):
                return [self._encoded(*one) for one in zip(rows, values, strict=True)]
        return values

    def _encoded(
        self, row: SinkRow, values: tuple[Any, ...], names: Sequence[str] = ()
    ) -> tuple[Any, ...]:
        columns = self._columns
        encoded: list[Any] | None = None
        for at, encode, plain in self._of_key if names else self._encoders:
            value = values[at]
            if value is None or type(value) is plain:
                continue
            if encoded is None:
                encoded = list(values)
            try:
                encoded[at] = encode(value)
            except Exception as error:  # the value's own class may raise anything
                raise columns.refused(
                    describe_write_error(error), (names or columns.names)[at], row
                ) from error
        return values if encoded is None else tuple(encoded)

    def _not_dumped(self, rows: Sequence[Named]) -> SinkRefusedError | None:
        """Return an error for the first value that psycopg cannot convert."""
        adapt = load_psycopg().adapt
        transformer = adapt.Transformer(self._connection)
        for row, names, values in rows:
            for name, value in zip(names, values, strict=True):
                if value is None:
                    continue
                try:
                    transformer.get_dumper(value, adapt.PyFormat.TEXT).dump(value)
                except Exception as error:  # any of them has stopped the batch
                    return self._columns.refused(client_s(error), name, row)
        return None

    def _not_cast(self, rows: Sequence[Named]) -> SinkRefusedError | None:
        """Find the value of a single row that fails; the server names columns only for COPY."""
        if len(rows) != 1:
            return None
        ((row, names, values),) = rows
        psycopg = load_psycopg()
        for name, value in zip(names, values, strict=True):
            kind = self._types[self._columns.names.index(name)]
            try:
                self._connection.execute(f"SELECT %s::{kind}", (value,))
            except psycopg.DataError as error:
                return self._columns.refused(reason_of(error), name, row)
            except psycopg.Error:
                return None
        return None

    def _move(self, cursor: Any, batch: SinkBatch) -> None:
        """Move the position, or raise if it is not expected; other writers wait for its lock."""
        cursor.execute(*position_update(self._name, batch, "%s"))
        if cursor.rowcount != 1:
            raise fenced(batch)

    def close(self) -> None:
        self._connection.close()


def _settings(timeout_ms: int) -> Iterator[tuple[str, str]]:
    """Yield a connection's settings: time-outs, so that a hanging writer cannot lock positions."""
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        yield name, str(timeout_ms)
    # A lost host closes no connection, and its transactions hold locks until keep-alive detects it.
    yield "tcp_keepalives_idle", str(max(1, timeout_ms // 1000))
    yield "tcp_keepalives_interval", "1"
    yield "tcp_keepalives_count", "3"
    yield "TimeZone", "UTC"


def _make(connection: Any, table: str, statement: str) -> None:
    """Create a table if it does not exist; an existing table requires no right to create tables."""
    name = table if table == POSITIONS else full_name(table)
    if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(statement)


def _plain(kind: str) -> str:
    return kind.partition("(")[0]


def _number(value: Any) -> Any:
    # All elements of a list must have the same type.
    return Decimal(str(value)) if isinstance(value, (int, float)) else value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, (int, Decimal)) else value


_ENCODERS: Mapping[str, tuple[Callable[[Any], Any], type | None]] = {
    "json": (as_json, None),
    "jsonb": (as_json, None),
    "numeric": (_number, Decimal),
    "double precision": (_real, float),
    "real": (_real, float),
}
"""Encoder of values for some types, and the class of values that need no encoding."""

_Encoders = Sequence[tuple[int, Callable[[Any], Any], type | None]]


def _encoders(types: Sequence[str]) -> _Encoders:
    """Return the encoders of the columns that may need encoding, with the columns' indexes."""
    found = ((at, _ENCODERS.get(_plain(kind))) for at, kind in enumerate(types))
    return [(at, *one) for at, one in found if one is not None]
