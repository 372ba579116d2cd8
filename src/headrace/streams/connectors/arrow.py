"""Rows as Arrow tables: column types, and conversion of values; needs `pyarrow`.

Arrow itself truncates 1.5 to 1, and reads the integer 5 as a timestamp in 1970. This module never
changes a value: if a column cannot hold a value, its row is rejected.

Hot path: `table` runs for each row.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from time import monotonic, sleep
from typing import Any
from uuid import UUID

from headrace.streams.connectors.sqlite import require_columns
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import (
    SinkBatching,
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
    parts_of,
    utc,
)

Encode = Callable[[Any], Any]

_DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


class ArrowColumns(Columns):
    """Columns of a table whose types may also be Arrow types.

    A column has the Arrow type of its Python type: times are microseconds in UTC, a `Decimal` has
    38 digits with 9 decimal places, a `UUID` is text, and types without an Arrow type, such as a
    mapping, a list or a dataclass, are JSON as text. A name such as ``"int32"``,
    ``"timestamp[ms]"`` or ``"decimal(12, 2)"`` selects another type, and so does a type of pyarrow
    such as ``pa.list_(pa.string())``, which is nullable.

    Args:
        table: the table's name, for errors.
        columns: as of `Columns`; types by name may be types of pyarrow.
        key: the key columns; empty if rows are appended.
        row: called as ``row(key, value)``; returns the object that contains the columns.

    Raises:
        TopologyError: no column is given, or a key column is not among the columns.

    Examples:
        >>> columns = ArrowColumns("orders", {"item": str, "price": float | None})
        >>> rows = ArrowRows(columns)
        >>> rows.schema.field("price").type
        DataType(double)
        >>> rows.table([SinkRow(None, {"item": "tea", "price": None}, 0, 7)]).to_pylist()
        [{'item': 'tea', 'price': None}]
    """

    def __init__(
        self, table: str, columns: type | Types, key: str | Sequence[str] = (),
        row: Row | None = None,
    ) -> None:  # fmt: skip
        given: Mapping[str, Any] = columns if isinstance(columns, Mapping) else {}
        self.arrow_types = {name: kind for name, kind in given.items() if _is_of_arrow(kind)}
        if self.arrow_types:
            columns = {name: Any if name in self.arrow_types else k for name, k in given.items()}
        super().__init__(table, columns, key, row)


class ArrowRows:
    """Converter of rows to Arrow tables: see `ArrowColumns`.

    Args:
        known: Arrow types of columns whose types are named as the database names them.

    Raises:
        SinkUnusableError: Arrow does not know the type of a column.
    """

    def __init__(self, columns: ArrowColumns, known: Mapping[str, Any] | None = None) -> None:
        import pyarrow

        self._pyarrow = pyarrow
        self.columns = columns
        kinds = known or {}
        kinds = {n: kinds[n] if n in kinds else _type_of(columns, n) for n in columns.names}
        nullable = {*columns.nullable, *(n for n in columns.names if columns.types[n] is object)}
        self.schema = pyarrow.schema(
            [pyarrow.field(name, kind, name in nullable) for name, kind in kinds.items()]
        )
        self._encoders = {
            name: as_json if _is_json(columns, name) else _encoder_of(kind)
            for name, kind in kinds.items()
        }
        # Types that Arrow converts correctly, so that only other values are encoded individually.
        self._plain = {
            name: _PLAIN[encode]
            for name, encode in self._encoders.items()
            if encode is not None and encode in _PLAIN
        }

    def table(self, rows: Sequence[SinkRow]) -> Any:
        """Create a `pyarrow.Table`; a SinkRefusedError lists all bad rows."""
        try:
            return self._all(rows)
        except SinkRefusedError as error:
            raise self._check_each(rows, error) from error

    def _all(self, rows: Sequence[SinkRow]) -> Any:
        return self._made(rows, self.columns.names, [self.columns.values(row) for row in rows])

    def _check_each(self, rows: Sequence[SinkRow], error: SinkRefusedError) -> SinkRefusedError:
        """Check each row alone, so that the rest of the batch can be written after an error."""
        refused = []
        for row in rows:
            try:
                self._all([row])
            except SinkRefusedError as one:
                refused.append(one)
        if not refused:
            return error
        refused[0].others = refused[1:]
        return refused[0]

    def keys(self, rows: Sequence[SinkRow]) -> Any:
        return self._made(rows, self.columns.key, [self.columns.key_of(row) for row in rows])

    def _made(
        self, rows: Sequence[SinkRow], names: Sequence[str], values: Sequence[tuple[Any, ...]]
    ) -> Any:
        by_column: Sequence[Sequence[Any]]
        by_column = list(zip(*values, strict=True)) if values else [()] * len(names)
        arrays = [self._array(n, v, rows) for n, v in zip(names, by_column, strict=True)]
        schema = self._pyarrow.schema([self.schema.field(name) for name in names])
        return self._pyarrow.Table.from_arrays(arrays, schema=schema)

    def _array(self, name: str, values: Sequence[Any], rows: Sequence[SinkRow]) -> Any:
        field, encode = self.schema.field(name), self._encoders[name]
        if not field.nullable and None in values:
            at = values.index(None)
            raise self.columns.refused("it is null, and the column must not be", name, rows[at])
        if encode is not None and not self._plain.get(name, _NOTHING).issuperset(map(type, values)):
            values = [self._encoded(encode, v, name, r) for v, r in zip(values, rows, strict=True)]
        try:
            return self._pyarrow.array(values, field.type)
        except (self._pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._culprit(field, values, rows, error) from error

    def _encoded(self, encode: Encode, value: Any, name: str, row: SinkRow) -> Any:
        if value is None:
            return None
        try:
            return encode(value)
        except _UnfitError:
            raise self.columns.refused(self._unfit(name, value), name, row) from None
        except Exception as error:  # the value's own class may raise anything
            raise self.columns.refused(describe_write_error(error), name, row) from error

    def _unfit(self, name: str, value: Any) -> str:
        kind = self.schema.field(name).type
        advice = self.columns.advice(name)
        return f"a {type(value).__name__} does not fit into {kind}; {advice}"

    def _culprit(
        self, field: Any, values: Sequence[Any], rows: Sequence[SinkRow], error: Exception
    ) -> SinkRefusedError:
        """Return an error for the first row that Arrow rejects; Arrow's messages quote values."""
        for value, row in zip(values, rows, strict=True):
            try:
                self._pyarrow.array([value], field.type)
            except UnicodeEncodeError as unicode:
                return self.columns.refused(describe_write_error(unicode), field.name, row)
            except OverflowError:
                reason = f"a number has more bits than {field.type}"
                return self.columns.refused(reason, field.name, row)
            except Exception:
                return self.columns.refused(self._unfit(field.name, value), field.name, row)
        return SinkRefusedError(
            describe_write_error(error), table=self.columns.table, column=field.name
        )


def schema_of(columns: ArrowColumns, database: str) -> Any:
    """Return the schema of a table to create; raise if the database lacks the type of a column."""
    from pyarrow import types

    schema = ArrowRows(columns).schema
    for field in schema:
        if types.is_duration(field.type):
            raise SinkUnusableError(
                f"{database} has no type for a duration (table {columns.table}, column "
                f"{field.name}). Give the column a number, and write row="
            )
    return schema


# -- types -----------------------------------------------------------------------------------------


def _is_of_arrow(kind: Any) -> bool:
    # Without an import: an Arrow type can only be given after pyarrow was imported.
    return any(one.__module__ == "pyarrow.lib" for one in type(kind).__mro__)


def _is_json(columns: ArrowColumns, name: str) -> bool:
    kind = columns.types[name]
    return name not in columns.arrow_types and isinstance(kind, type) and not _python(kind)


def _type_of(columns: ArrowColumns, name: str) -> Any:
    import pyarrow

    if name in columns.arrow_types:
        return columns.arrow_types[name]
    kind = columns.types[name]
    if isinstance(kind, type):
        return _python(kind) or pyarrow.string()
    parts = _DECIMAL.fullmatch(kind.strip())
    try:
        if parts is not None:
            return pyarrow.decimal128(int(parts[1]), int(parts[2]))
        return pyarrow.type_for_alias(kind)
    except ValueError as error:
        raise SinkUnusableError(
            f"column {name} of table {columns.table} is given {kind!r}, which Arrow does not know; "
            "give a type of Python or of pyarrow, or a name such as 'int32', 'timestamp[ms]' or "
            "'decimal(12, 2)'"
        ) from error


def _python(kind: type) -> Any:
    """Return the Arrow type of a Python type, or None if its values are written as JSON."""
    import pyarrow

    if issubclass(kind, Enum):
        return pyarrow.string() if issubclass(kind, str) else None
    known = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
        bytes: pyarrow.binary(),
        datetime: pyarrow.timestamp("us", tz="UTC"),
        date: pyarrow.date32(),
        time: pyarrow.time64("us"),
        timedelta: pyarrow.duration("us"),
        Decimal: pyarrow.decimal128(38, 9),
        UUID: pyarrow.string(),
    }
    return known.get(kind)


def is_alike(kind: type, other: Any) -> bool:
    """Return whether values of a Python type are values of an Arrow type, perhaps out of range."""
    own = _python(kind)
    return own is not None and _encoder_of(own) is _encoder_of(other) is not None


# -- values ----------------------------------------------------------------------------------------


class _UnfitError(Exception):
    """Value that does not fit an Arrow type."""


def _encoder_of(kind: Any) -> Encode | None:
    """Return the encoder of values for an Arrow type, or None if Arrow takes them unchanged."""
    from pyarrow import types

    if types.is_integer(kind):
        return _integer
    for is_kind, encode in _ENCODERS:
        if getattr(types, is_kind)(kind):
            return encode
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return partial(_list, _encoder_of(kind.value_type))
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return partial(_struct, {field.name: _encoder_of(field.type) for field in fields})
    if types.is_map(kind):
        return partial(_map, _encoder_of(kind.key_type), _encoder_of(kind.item_type))
    return None


def _integer(value: Any) -> Any:
    if type(value) is int:
        return value
    value = _inner(value)
    if isinstance(value, (float, Decimal)) and value != value // 1:
        raise _UnfitError
    if not isinstance(value, (int, float, Decimal)):
        raise _UnfitError
    return int(value)


def _floating(value: Any) -> Any:
    if type(value) is float:
        return value
    value = _inner(value)
    if not isinstance(value, (int, float, Decimal)):
        raise _UnfitError
    return float(value)


def _text(value: Any) -> Any:
    if type(value) is str:
        return value
    value = _inner(value)
    if isinstance(value, (str, UUID, Decimal)):
        return str(value)
    if isinstance(value, datetime):
        return utc(value).isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, set, frozenset)) or parts_of(value) is not None:
        return as_json(value)
    raise _UnfitError


def _binary(value: Any) -> Any:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _UnfitError
    return bytes(value)


def _datetime(value: Any) -> Any:
    if not isinstance(value, datetime):
        raise _UnfitError
    return utc(value)


def _date(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc(value).astimezone(UTC).date()
    return _instance_of(date, value)


def _decimal(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(str(value))
    return _instance_of((int, Decimal), _inner(value))


def _instance_of(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise _UnfitError
    return value


_ENCODERS: Sequence[tuple[str, Encode]] = (
    ("is_boolean", partial(_instance_of, bool)),
    ("is_floating", _floating),
    ("is_string", _text),
    ("is_large_string", _text),
    ("is_binary", _binary),
    ("is_large_binary", _binary),
    ("is_fixed_size_binary", _binary),
    ("is_timestamp", _datetime),
    ("is_date", _date),
    ("is_time", partial(_instance_of, time)),
    ("is_duration", partial(_instance_of, timedelta)),
    ("is_decimal", _decimal),
)

_NOTHING: frozenset[type] = frozenset()
_PLAIN: Mapping[Encode, frozenset[type]] = {
    _integer: frozenset({int, type(None)}),
    _floating: frozenset({float, type(None)}),
    _text: frozenset({str, type(None)}),
    _binary: frozenset({bytes, type(None)}),
    _datetime: frozenset({datetime, type(None)}),  # Arrow, too, reads a naive datetime as UTC
    _date: frozenset({date, type(None)}),
    _decimal: frozenset({int, Decimal, type(None)}),
}


def _list(encode: Encode | None, value: Any) -> Any:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _UnfitError
    return [_or_none(encode, one) for one in value]


def _struct(encoders: Mapping[str, Encode | None], value: Any) -> Any:
    parts = parts_of(value)
    if parts is None:
        raise _UnfitError
    return {name: _or_none(encode, parts.get(name)) for name, encode in encoders.items()}


def _map(key: Encode | None, item: Encode | None, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _UnfitError
    return [(_or_none(key, k), _or_none(item, v)) for k, v in value.items()]


def _or_none(encode: Encode | None, value: Any) -> Any:
    return value if encode is None or value is None else encode(value)


def _inner(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


# Rows for an existing table, shared by Delta and Iceberg.
#
# Hot path: `ArrowTableConverter.table` runs for each batch.


_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_QUERY = re.compile(r"\?[^\s)\"']+")
_SECRETS = re.compile(r"(?<=://)[^@/\s]+(?=@)")
_SAID_MAX = 300
_PAUSE_S = 0.02


def partitioning(columns: ArrowColumns, given: str | Sequence[str], *, create: bool) -> list[str]:
    """Return the partition columns; a table that is not created here must have none."""
    parts = [given] if isinstance(given, str) else list(given)
    if parts and not create:
        raise TopologyError(
            f"partition_by= requires create=True (table {columns.table}). Give both, or omit it"
        )
    unknown = [name for name in parts if name not in columns.names]
    if unknown or (parts and set(parts) == set(columns.names)):
        what = f"{unknown[0]}, which is none" if unknown else "all"
        raise TopologyError(
            f"partition_by= of table {columns.table} names {what} of its columns "
            f"{', '.join(columns.names)}; name some of them"
        )
    return parts


@dataclasses.dataclass(eq=False, repr=False)
class TableConnection:
    """Connection of a sink to a table whose commits conflict with the commits of other writers.

    Args:
        schema: the table's schema, or its id, when the table was loaded.
        timeout_s: time limit of retries of a commit that conflicts.
    """

    table: Any
    name: str
    columns: ArrowColumns
    rows: ArrowTableConverter
    schema: Any
    timeout_s: float
    batching: SinkBatching

    def repeat(self, attempt: Callable[[], None], is_conflict: Callable[[Exception], bool]) -> None:
        """Repeat a commit while other writers commit first; each attempt checks the position."""
        deadline, pause_s = monotonic() + self.timeout_s, _PAUSE_S
        while True:
            try:
                return attempt()
            except Exception as error:
                if not is_conflict(error):
                    raise
                if monotonic() + pause_s > deadline:
                    raise SinkUnavailableError(
                        f"commits of other writers conflict with this commit for "
                        f"{self.timeout_s:g} s (table {self.columns.table}): {message_of(error)}"
                    ) from error
            sleep(pause_s)
            pause_s *= 2


class ArrowTableConverter:
    """Converter of rows to `pyarrow.Table`s with the columns and types of an existing table.

    Args:
        columns: the columns that are written; other columns become null.
        schema: the table's Arrow schema.

    Raises:
        SinkUnusableError: the table lacks a column, or has another column that is not nullable.
    """

    def __init__(self, columns: ArrowColumns, schema: Any) -> None:
        import pyarrow

        _require_columns(columns, schema)
        self._pyarrow = pyarrow
        declared = ArrowRows(columns)
        other = {
            name: schema.field(name).type
            for name in columns.names
            if not _are_alike(schema.field(name).type, declared.schema.field(name).type)
        }
        as_there = copy.copy(columns)
        as_there.arrow_types = {**columns.arrow_types, **other}
        self._rows = ArrowRows(as_there)
        # The table decides whether a column is nullable.
        self._rows.schema = pyarrow.schema(
            [field.with_nullable(schema.field(field.name).nullable) for field in self._rows.schema]
        )
        self.schema = pyarrow.schema(
            [pyarrow.field(field.name, field.type, field.nullable) for field in schema]
        )

    def table(self, rows: Sequence[SinkRow]) -> Any:
        made = self._rows.table(rows)
        arrays = [
            made.column(field.name).cast(field.type)
            if field.name in made.column_names
            else self._pyarrow.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return self._pyarrow.Table.from_arrays(arrays, schema=self.schema)

    def keys(self, rows: Sequence[SinkRow]) -> Any:
        made = self._rows.keys(rows)
        fields = [self.schema.field(name) for name in made.column_names]
        return made.cast(self._pyarrow.schema(fields))


def _require_columns(columns: ArrowColumns, schema: Any) -> None:
    require_columns(columns, schema.names)
    more = [f.name for f in schema if not f.nullable and f.name not in columns.names]
    if more:
        raise SinkUnusableError(
            f"table {columns.table} has a column {', '.join(more)} that may not be null. Add it to "
            "the columns"
        )


def _are_alike(existing: Any, declared: Any) -> bool:
    from pyarrow import types

    if types.is_string(declared):
        return bool(types.is_string(existing) or types.is_large_string(existing))
    return bool(existing == declared)


def message_of(error: BaseException) -> str:
    """Return the message of a file or service error as a single line, with secrets masked.

    >>> message_of(OSError("no answer\\n  from https://me:pass@host/x?sig=abc"))
    'no answer from https://***@host/x?***'
    """
    text = " ".join(_COLORS.sub("", str(error)).replace("↳", " ").split())
    text = _SECRETS.sub("***", _QUERY.sub("?***", text))
    return text[:_SAID_MAX] or type(error).__name__
