"""Columns of an external table, and how the values of a row are taken from a record.

Hot path: `values` runs for each row.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any, cast

import msgspec

from headrace.topology.errors import TopologyError, type_of
from headrace.topology.external_sink import SinkRefusedError, SinkRow
from headrace.topology.functions import location_of
from headrace.topology.windows import Windowed

# JSON of values of typed classes, and messages for values that cannot be written.
#
# Hot path: `as_json` runs for each value of a column of JSON.


class NotJsonError(TypeError):
    """A value that JSON cannot represent; the message names types and contains no value."""


def as_json(value: Any) -> str:
    """Encode a value as JSON, with typed classes as in `serdes.json_of`.

    Raises:
        NotJsonError: the value, or a part of it, cannot be represented in JSON.

    >>> from datetime import date
    >>> as_json({"at": date(2026, 1, 2), "tags": {"new"}})
    '{"at": "2026-01-02", "tags": ["new"]}'
    """
    try:
        return json.dumps(value, default=_jsonable, allow_nan=False)
    except NotJsonError:
        raise
    except TypeError:
        # A key that is not a str.
        return json.dumps(_jsonable(value), allow_nan=False)
    except ValueError as error:
        what = "a value that contains itself" if "ircular" in str(error) else "NaN or an infinity"
        raise NotJsonError(f"JSON cannot represent {what}") from error


def describe_write_error(error: BaseException) -> str:
    r"""Return a message for an error of writing a value, without the value.

    >>> try:
    ...     "\ud800".encode()
    ... except ValueError as error:
    ...     describe_write_error(error)
    'text with a lone surrogate, which UTF-8 does not have'
    """
    if isinstance(error, UnicodeEncodeError):
        return "text with a lone surrogate, which UTF-8 does not have"
    if isinstance(error, NotJsonError):
        return f"TypeError as JSON: {error}"
    return f"writing its value raised {type(error).__name__}"


def _jsonable(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_refuse_type)


def _refuse_type(value: Any) -> Any:
    raise NotJsonError(f"it has no type for a {type(value).__name__}")


Types = Mapping[str, "type | str"]
Row = Callable[[Any, Any], Any]

_WINDOW = ("window_start", "window_end")
_MISSING = object()
_PLAIN = frozenset({str, int, float, bool, bytes})
"""Classes without fields."""


class Columns:
    """Columns of a table.

    The parts of a record are found by name: in its value, if that is a mapping, a dataclass, a
    `msgspec.Struct` or a named tuple, and in its key. A value of another class is stored in the
    only remaining column, as is a key. The columns of the key are taken from the record's key,
    because a deleted row has no value; if the value has a different part of that name, the row is
    rejected. Windowed keys also have ``window_start`` and ``window_end``.

    Args:
        table: the table's name, for errors.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name: a
            Python type, or the name of a type of the database.
        key: the columns that identify a row; empty if rows are appended.
        row: called as ``row(key, value)``; returns the object that the columns are taken from.

    Raises:
        TopologyError: no column is given, or a column of the key does not exist.

    >>> counts = Columns("counts", {"word": str, "count": int}, key=["word"])
    >>> counts.values(SinkRow("rose", 3, 0, 7))
    ('rose', 3)
    >>> counts.key_of(SinkRow("rose", None, 0, 8))
    ('rose',)
    """

    def __init__(
        self, table: str, columns: type | Types, key: Sequence[str] = (), row: Row | None = None
    ) -> None:
        self.table = table
        self.types, self.nullable = _types_of(table, columns)
        self.names = tuple(self.types)
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.others = tuple(name for name in self.names if name not in self.key)
        unknown = [name for name in self.key if name not in self.types]
        if unknown:
            raise TopologyError(
                f"table {table} has no column {', '.join(unknown)}, which key= names. Name its "
                f"columns: {', '.join(self.names)}"
            )
        self._row = row
        self._named_key = tuple(name for name in self.key if name not in _WINDOW)
        self._key_at = self.names.index(self.key[0]) if len(self.key) == 1 else 0
        self._has_plain_key = len(self.key) == len(self._named_key) == 1
        self._getters: dict[type, Callable[[Any], Sequence[Any]] | None] = {}
        """Getters of the non-key columns, by class of the value; None if the class lacks some."""

    def values(self, row: SinkRow) -> tuple[Any, ...]:
        """Return values in the order of the columns; raise SinkRefusedError if any is missing."""
        return self._values_of(row, self._source_of(row))

    def _values_of(self, row: SinkRow, source: Any) -> tuple[Any, ...]:
        values = self._quick_values(source)
        if values is not None:
            if not self.key:
                return tuple(values)
            if self._has_plain_key and type(row.key) in _PLAIN:
                if type(source) not in _PLAIN:
                    self._require_equal(self.key[0], row.key, _part_of(source, self.key[0]), row)
                return (*values[: self._key_at], row.key, *values[self._key_at :])
        return self._values_by_name(row, source)

    def all_values(self, rows: Sequence[SinkRow]) -> list[tuple[Any, ...]]:
        """Return the values of several rows, faster than `values` for each."""
        if self.key:
            return [self.values(row) for row in rows]
        result = []
        row_function, getters = self._row, self._getters
        for row in rows:
            source = row[1]
            if row_function is not None:
                try:
                    source = row_function(row[0], source)
                except Exception as error:
                    raise self._row_function_error(error, row) from error
            getter = getters.get(type(source))
            if getter is None:
                result.append(self._values_of(row, source))
                continue
            try:
                result.append(tuple(getter(source)))
            except (KeyError, AttributeError):
                result.append(self._values_by_name(row, source))
        return result

    def _quick_values(self, source: Any) -> Sequence[Any] | None:
        """Return the values of the non-key columns, or None if they must be looked up by name."""
        kind = type(source)
        if kind not in self._getters:
            self._getters[kind] = _getter(kind, source, self.others)
        getter = self._getters[kind]
        if getter is None:
            return None
        try:
            return getter(source)
        except (KeyError, AttributeError):
            return None

    def _values_by_name(self, row: SinkRow, source: Any) -> tuple[Any, ...]:
        key = self._key_parts(row.key)
        parts = parts_of(source)
        if parts is None:
            free = [name for name in self.others if name not in key]
            parts = {free[0]: source} if len(free) == 1 else {}
        for name in self._named_key:
            self._require_equal(name, key.get(name, _MISSING), parts.get(name, _MISSING), row)
        return tuple(self._value_of(name, key, parts, row) for name in self.names)

    def _require_equal(self, name: str, of_key: Any, of_value: Any, row: SinkRow) -> None:
        """Raise if key and value differ in a column, because rows would be overwritten."""
        if of_value is of_key or of_value is _MISSING or of_key is _MISSING:
            return
        if of_value != of_key and str(of_value) != str(of_key):
            reason = (
                "the record's key and its value differ in this column; make the value's "
                f"{name} the key with select_key(lambda key, value: ...), or rename the column to "
                "store both"
            )
            raise self.refused(reason, name, row)

    def advice(self, name: str) -> str:
        return "convert it with " + ("select_key" if name in self.key else "row=")

    def _source_of(self, row: SinkRow) -> Any:
        if self._row is None:
            return row.value
        try:
            return self._row(row.key, row.value)
        except Exception as error:
            raise self._row_function_error(error, row) from error

    def _row_function_error(self, error: Exception, row: SinkRow) -> SinkRefusedError:
        assert self._row is not None
        location = location_of(self._row)
        reason = f"row= raised {type(error).__name__}{f' ({location})' if location else ''}"
        refused = self.refused(reason, None, row)
        refused.is_of_function = True
        return refused

    def key_of(self, row: SinkRow) -> tuple[Any, ...]:
        """Return the values that identify the row, in the order of the key columns."""
        if self._has_plain_key and type(row.key) in _PLAIN:
            return (row.key,)
        key = self._key_parts(row.key)
        return tuple(self._value_of(name, key, {}, row) for name in self.key)

    def _key_parts(self, key: Any) -> Mapping[str, Any]:
        window: dict[str, Any] = {}
        if isinstance(key, Windowed):
            window = {"window_start": key.window.start, "window_end": key.window.end}
            key = key.key
        parts = parts_of(key)
        if parts is None:
            if len(self._named_key) == 1:
                parts = {self._named_key[0]: key}
            elif isinstance(key, (tuple, list)) and len(key) == len(self._named_key):
                parts = dict(zip(self._named_key, key, strict=True))
            else:
                parts = {}
        return {**parts, **window} if window else parts

    def _value_of(
        self, name: str, key: Mapping[str, Any], parts: Mapping[str, Any], row: SinkRow
    ) -> Any:
        first, second = (key, parts) if name in self.key else (parts, key)
        result = first.get(name, _MISSING)
        if result is _MISSING:
            result = second.get(name, _MISSING)
        if result is _MISSING:
            if name in self.nullable and name not in self.key:
                return None
            raise self.refused(self._missing_reason(row), name, row)
        if result is None and name in self.key:
            raise self.refused("it is part of the key and must not be null", name, row)
        return result

    def _missing_reason(self, row: SinkRow) -> str:
        if row.value is None and self._row is None:
            return "the value is null; filter the record out, or pass key= so that it deletes a row"
        return "the record has no value for this column"

    def refused(self, reason: str, column: str | None, row: SinkRow) -> SinkRefusedError:
        return SinkRefusedError(reason, table=self.table, column=column, offset=row.offset)

    def last_of_each_key(self, rows: Sequence[SinkRow]) -> tuple[list[SinkRow], list[SinkRow]]:
        """Split a batch into the last row of each key, and the deletions of keys."""
        last: dict[tuple[Any, ...], SinkRow] = {}
        for row in rows:
            key = self.key_of(row)
            try:
                last[key] = row
            except TypeError as error:  # such as a list
                reason = f"its key cannot be compared ({type(error).__name__}); give another key"
                raise self.refused(reason, None, row) from error
        upserts = [row for row in last.values() if row.value is not None]
        return upserts, [row for row in last.values() if row.value is None]


def _getter(kind: type, source: Any, names: Sequence[str]) -> Callable[[Any], Sequence[Any]] | None:
    if kind in _PLAIN:
        return _as_only_value if len(names) == 1 else None
    get: Callable[..., Any] = itemgetter
    if kind is not dict:
        fields = None if isinstance(source, Mapping) else parts_of(source)
        if fields is None or not fields.keys() >= set(names):
            return None
        get = attrgetter
    if not names:
        return _no_values
    if len(names) == 1:
        return _SingleColumn(get(names[0]))
    return cast("Callable[[Any], Sequence[Any]]", get(*names))


@dataclasses.dataclass(frozen=True, slots=True)
class _SingleColumn:
    """Getter of a single column; a class, because sinks are pickled for other processes."""

    get: Callable[[Any], Any]

    def __call__(self, value: Any) -> Sequence[Any]:
        return (self.get(value),)


def _part_of(source: Any, name: str) -> Any:
    return source.get(name, _MISSING) if type(source) is dict else getattr(source, name, _MISSING)


def _as_only_value(value: Any) -> Sequence[Any]:
    return (value,)


def _no_values(value: Any) -> Sequence[Any]:
    del value
    return ()


def parts_of(source: Any) -> Mapping[str, Any] | None:
    """Return the fields of an object by name, or None for an object without fields."""
    if isinstance(source, Mapping):
        return source
    kind = type(source)
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if names is None and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    return None if names is None else {name: getattr(source, name) for name in names}


def _types_of(table: str, columns: type | Types) -> tuple[dict[str, type | str], frozenset[str]]:
    hints = columns if isinstance(columns, Mapping) else _hints(table, columns)
    result: dict[str, type | str] = {}
    nullable = set()
    for name, hint in hints.items():
        if not _is_type(hint):
            raise TopologyError(
                f"column {name} of table {table} must have a type such as int or str, or a type "
                f"name of the database such as 'bigint', not {type_of(hint)}"
            )
        kind, is_nullable = _plain_type(hint)
        result[name] = kind
        if is_nullable:
            nullable.add(name)
    if not result:
        raise TopologyError(f"table {table} has no columns; name a column")
    return result, frozenset(nullable)


def _hints(table: str, columns: Any) -> Mapping[str, Any]:
    if not isinstance(columns, type) and not typing.is_typeddict(columns):
        raise TopologyError(
            f"the columns of table {table} must be a dataclass, a msgspec.Struct, a TypedDict, or "
            "types by name such as {'id': int, 'name': str}, "
            f"not {type_of(columns)}"
        )
    return typing.get_type_hints(columns)


def _is_type(hint: Any) -> bool:
    is_type = isinstance(hint, (type, str)) or typing.get_origin(hint) is not None
    return is_type or hint is Any or isinstance(hint, (typing.TypeVar, typing.NewType))


def _plain_type(hint: Any) -> tuple[type | str, bool]:
    """Return a type without its parameters and None, and whether None was allowed."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        arguments = typing.get_args(hint)
        rest = [argument for argument in arguments if argument is not type(None)]
        kind = _plain_type(rest[0])[0] if len(rest) == 1 else object
        return kind, len(rest) < len(arguments)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _plain_type(typing.get_args(hint)[0])
    if hint is Any:
        return object, True
    kind = hint if origin is None else origin
    return (kind if isinstance(kind, (type, str)) else object), False


def utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def require_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TopologyError(f"{name} must be True or False, not {type_of(value)}")
    return value
