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
from headrace.topology.functions import place_of
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


def said_of(error: BaseException) -> str:
    r"""Return a message for an error of writing a value, without the value.

    >>> try:
    ...     "\ud800".encode()
    ... except ValueError as error:
    ...     said_of(error)
    'text with a lone surrogate, which UTF-8 does not have'
    """
    if isinstance(error, UnicodeEncodeError):
        return "text with a lone surrogate, which UTF-8 does not have"
    if isinstance(error, NotJsonError):
        return f"TypeError as JSON: {error}"
    return f"writing its value raised {type(error).__name__}"


def _jsonable(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_none)


def _none(value: Any) -> Any:
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
                f"table {table} is given the key {', '.join(unknown)}, which is none of its "
                f"columns {', '.join(self.names)}; name columns"
            )
        self._row = row
        self._of_key = tuple(name for name in self.key if name not in _WINDOW)
        self._key_at = self.names.index(self.key[0]) if len(self.key) == 1 else 0
        self._has_plain_key = len(self.key) == len(self._of_key) == 1
        self._takers: dict[type, Callable[[Any], Sequence[Any]] | None] = {}
        """Getters of the non-key columns, by class of the value; None if the class lacks some."""

    def values(self, row: SinkRow) -> tuple[Any, ...]:
        """Return values in the order of the columns; raise SinkRefusedError if any is missing."""
        return self._values_of(row, self._given(row))

    def _values_of(self, row: SinkRow, given: Any) -> tuple[Any, ...]:
        taken = self._taken(given)
        if taken is not None:
            if not self.key:
                return tuple(taken)
            if self._has_plain_key and type(row.key) in _PLAIN:
                if type(given) not in _PLAIN:
                    self._require_same(self.key[0], row.key, _said(given, self.key[0]), row)
                return (*taken[: self._key_at], row.key, *taken[self._key_at :])
        return self._looked_for(row, given)

    def all_values(self, rows: Sequence[SinkRow]) -> list[tuple[Any, ...]]:
        """Return the values of several rows, faster than `values` for each."""
        if self.key:
            return [self.values(row) for row in rows]
        found = []
        given_of, takers = self._row, self._takers
        for row in rows:
            given = row[1]
            if given_of is not None:
                try:
                    given = given_of(row[0], given)
                except Exception as error:
                    raise self._raised(error, row) from error
            take = takers.get(type(given))
            if take is None:
                found.append(self._values_of(row, given))
                continue
            try:
                found.append(tuple(take(given)))
            except (KeyError, AttributeError):
                found.append(self._looked_for(row, given))
        return found

    def _taken(self, given: Any) -> Sequence[Any] | None:
        """Return the values of the non-key columns, or None if they must be looked up by name."""
        kind = type(given)
        if kind not in self._takers:
            self._takers[kind] = _taker(kind, given, self.others)
        take = self._takers[kind]
        if take is None:
            return None
        try:
            return take(given)
        except (KeyError, AttributeError):
            return None

    def _looked_for(self, row: SinkRow, given: Any) -> tuple[Any, ...]:
        key = self._key_parts(row.key)
        parts = parts_of(given)
        if parts is None:
            free = [name for name in self.others if name not in key]
            parts = {free[0]: given} if len(free) == 1 else {}
        for name in self._of_key:
            self._require_same(name, key.get(name, _MISSING), parts.get(name, _MISSING), row)
        return tuple(self._one(name, key, parts, row) for name in self.names)

    def _require_same(self, name: str, of_key: Any, of_value: Any, row: SinkRow) -> None:
        """Raise if key and value differ in a column, because rows would be overwritten."""
        if of_value is of_key or of_value is _MISSING or of_key is _MISSING:
            return
        if of_value != of_key and str(of_value) != str(of_key):
            reason = (
                "the record's key and its value differ in it, and the row would be stored under "
                f"the key; select_key(lambda key, value: ...) before it makes {name} the key, and "
                "another name of the column keeps both"
            )
            raise self.refused(reason, name, row)

    def advice(self, name: str) -> str:
        return "create it with select_key" if name in self.key else "create it with row="

    def _given(self, row: SinkRow) -> Any:
        if self._row is None:
            return row.value
        try:
            return self._row(row.key, row.value)
        except Exception as error:
            raise self._raised(error, row) from error

    def _raised(self, error: Exception, row: SinkRow) -> SinkRefusedError:
        assert self._row is not None
        place = place_of(self._row)
        reason = f"row= raised {type(error).__name__}{f' ({place})' if place else ''}"
        refused = self.refused(reason, None, row)
        refused.is_of_function = True
        return refused

    def key_of(self, row: SinkRow) -> tuple[Any, ...]:
        """Return the values that identify the row, in the order of the key columns."""
        if self._has_plain_key and type(row.key) in _PLAIN:
            return (row.key,)
        key = self._key_parts(row.key)
        return tuple(self._one(name, key, {}, row) for name in self.key)

    def _key_parts(self, key: Any) -> Mapping[str, Any]:
        window: dict[str, Any] = {}
        if isinstance(key, Windowed):
            window = {"window_start": key.window.start, "window_end": key.window.end}
            key = key.key
        parts = parts_of(key)
        if parts is None:
            if len(self._of_key) == 1:
                parts = {self._of_key[0]: key}
            elif isinstance(key, (tuple, list)) and len(key) == len(self._of_key):
                parts = dict(zip(self._of_key, key, strict=True))
            else:
                parts = {}
        return {**parts, **window} if window else parts

    def _one(
        self, name: str, key: Mapping[str, Any], parts: Mapping[str, Any], row: SinkRow
    ) -> Any:
        first, second = (key, parts) if name in self.key else (parts, key)
        found = first.get(name, _MISSING)
        if found is _MISSING:
            found = second.get(name, _MISSING)
        if found is _MISSING:
            if name in self.nullable and name not in self.key:
                return None
            raise self.refused(self._lacking(row), name, row)
        if found is None and name in self.key:
            raise self.refused("it is part of the key, and null", name, row)
        return found

    def _lacking(self, row: SinkRow) -> str:
        if row.value is None and self._row is None:
            return "the record's value is null; filter it out, or give key= to have it delete a row"
        return "the record has no value for it"

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
        there = [row for row in last.values() if row.value is not None]
        return there, [row for row in last.values() if row.value is None]


def _taker(kind: type, given: Any, names: Sequence[str]) -> Callable[[Any], Sequence[Any]] | None:
    if kind in _PLAIN:
        return _alone if len(names) == 1 else None
    get: Callable[..., Any] = itemgetter
    if kind is not dict:
        fields = None if isinstance(given, Mapping) else parts_of(given)
        if fields is None or not fields.keys() >= set(names):
            return None
        get = attrgetter
    if not names:
        return _nothing
    if len(names) == 1:
        return _One(get(names[0]))
    return cast("Callable[[Any], Sequence[Any]]", get(*names))


@dataclasses.dataclass(frozen=True, slots=True)
class _One:
    """Getter of a single column; a class, because sinks are pickled for other processes."""

    get: Callable[[Any], Any]

    def __call__(self, value: Any) -> Sequence[Any]:
        return (self.get(value),)


def _said(given: Any, name: str) -> Any:
    return given.get(name, _MISSING) if type(given) is dict else getattr(given, name, _MISSING)


def _alone(value: Any) -> Sequence[Any]:
    return (value,)


def _nothing(value: Any) -> Sequence[Any]:
    del value
    return ()


def parts_of(given: Any) -> Mapping[str, Any] | None:
    """Return the fields of an object by name, or None for an object without fields."""
    if isinstance(given, Mapping):
        return given
    kind = type(given)
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if names is None and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    return None if names is None else {name: getattr(given, name) for name in names}


def _types_of(table: str, columns: type | Types) -> tuple[dict[str, type | str], frozenset[str]]:
    hints = columns if isinstance(columns, Mapping) else _hints(table, columns)
    found: dict[str, type | str] = {}
    nullable = set()
    for name, hint in hints.items():
        if not _is_type(hint):
            raise TopologyError(
                f"column {name} of table {table} must have a type such as int or str, or a type "
                f"name of the database such as 'bigint', not {type_of(hint)}"
            )
        kind, is_nullable = _plain(hint)
        found[name] = kind
        if is_nullable:
            nullable.add(name)
    if not found:
        raise TopologyError(f"table {table} has no columns; name a column")
    return found, frozenset(nullable)


def _hints(table: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, type) and not typing.is_typeddict(given):
        raise TopologyError(
            f"the columns of table {table} are {type(given).__name__}; give a dataclass, a "
            "msgspec.Struct, a TypedDict, or types by name: {'id': int, 'name': str}"
        )
    return typing.get_type_hints(given)


def _is_type(hint: Any) -> bool:
    is_one = isinstance(hint, (type, str)) or typing.get_origin(hint) is not None
    return is_one or hint is Any or isinstance(hint, (typing.TypeVar, typing.NewType))


def _plain(hint: Any) -> tuple[type | str, bool]:
    """Return a type without its parameters and None, and whether None was allowed."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        arguments = typing.get_args(hint)
        rest = [one for one in arguments if one is not type(None)]
        kind = _plain(rest[0])[0] if len(rest) == 1 else object
        return kind, len(rest) < len(arguments)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _plain(typing.get_args(hint)[0])
    if hint is Any:
        return object, True
    kind = hint if origin is None else origin
    return (kind if isinstance(kind, (type, str)) else object), False


def utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def require_bool(name: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise TopologyError(f"{name} must be True or False, not {type_of(given)}")
    return given
