"""Spark columns for the objects of a serde.

Numbers, text and bytes keep their type. Lists become arrays, and classes of `serdes.json_of` become
structs if each of their fields has a single type. All else becomes JSON text, unless the caller
gives a type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import msgspec
import orjson
import pyarrow as pa
from msgspec import inspect

from headrace.spark_bridge.records.packs import TIMESTAMP, ddl_of
from headrace.topology.errors import SerdeError
from headrace.topology.graph.graph import AnySerde
from headrace.topology.serdes._json_of import JsonOfSerde
from headrace.topology.serdes._list_of import ListSerde
from headrace.topology.serdes._serde import BytesSerde, DoubleSerde, IntegerSerde, StringSerde

Plain = Callable[[Any], Any]

LAST_MS = 253_402_300_799_999
"""End of the year 9999, the last time that Spark supports."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of decoded objects.

    Args:
        serde: decodes the bytes; None keeps the bytes.
        plain: converts a decoded object to a type that Arrow accepts; None if this is not needed.
    """

    type: Any
    serde: AnySerde | None
    plain: Plain | None = None

    def array(self, data: Sequence[bytes | None]) -> Any:
        """Decode a column; raise SerdeError if the data or the objects do not fit the type."""
        if self.serde is None:
            return pa.array(data, self.type)
        decode, plain = self.serde.deserialize, self.plain
        found = [None if one is None else decode(one) for one in data]
        if plain is not None:
            found = [None if one is None else plain(one) for one in found]
        try:
            return pa.array(found, self.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SerdeError(
                f"a value of serde {self.serde.name!r} is not of the Spark type "
                f"{ddl_of(self.type)} ({error}). Give another type with key_type= or value_type=, "
                "such as 'string' or 'binary'"
            ) from error


def column_of(serde: AnySerde) -> Column:
    """Return the column for the objects of a serde.

    >>> from headrace import serdes
    >>> column = column_of(serdes.list_of(serdes.string))
    >>> ddl_of(column.type), column.array([serdes.list_of(serdes.string).serialize(["a"])])[0]
    ('array<string>', <pyarrow.ListScalar: ['a']>)
    >>> ddl_of(column_of(serdes.json).type)
    'string'
    """
    if isinstance(serde, BytesSerde):
        return Column(pa.binary(), None)
    if isinstance(serde, StringSerde):
        return Column(pa.string(), serde)
    if isinstance(serde, IntegerSerde):
        return Column(pa.int32() if serde.width == 4 else pa.int64(), serde)
    if isinstance(serde, DoubleSerde):
        return Column(pa.float64(), serde)
    if isinstance(serde, ListSerde):
        item = column_of(serde.inner)
        plain = None if item.plain is None else _Items(item.plain)
        return Column(pa.list_(item.type), serde, plain)
    if isinstance(serde, JsonOfSerde):
        found = _type_of(inspect.type_info(serde.cls), ())
        if found is not None:
            return Column(found, serde, _Fields(found))
    return Column(pa.string(), serde, json_text)


def declared_column(serde: AnySerde, kind: Any) -> Column:
    if kind == pa.binary():
        return Column(kind, None)
    if kind == pa.string():
        return Column(kind, serde, _text)
    return Column(kind, serde, _Fields(kind))


@dataclass(frozen=True, slots=True)
class _Items:
    """Function that converts each item of a list for Arrow."""

    plain: Plain

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        return [None if item is None else self.plain(item) for item in items]


@dataclass(frozen=True, slots=True)
class _Fields:
    """Function that converts an object to nested dicts and lists, and maps to pairs, for Arrow."""

    type: Any

    def __call__(self, value: Any) -> Any:
        return _shaped(msgspec.to_builtins(value, builtin_types=(bytes,)), self.type)


def _shaped(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {one.name: _shaped(value.get(one.name), one.type) for one in kind}
    if pa.types.is_map(kind) and isinstance(value, Mapping):
        return [(key, _shaped(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return [_shaped(item, kind.value_type) for item in value]
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> str:
    """Return JSON with sorted keys, or raise SerdeError."""
    try:
        return orjson.dumps(value, _plain_object, orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise SerdeError(
            f"a {type(value).__name__} has no Spark type and is not JSON ({error}). Give its type "
            "with key_type= or value_type=, or 'binary' for the bytes"
        ) from error


def _plain_object(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return msgspec.to_builtins(value)


_TEXT = (
    inspect.StrType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
)


def _type_of(kind: inspect.Type, inside: tuple[Any, ...]) -> Any:
    """Return the Arrow type of a JSON type, or None if no single type fits."""
    if isinstance(kind, inspect.Metadata):
        return _type_of(kind.type, inside)
    if isinstance(kind, inspect.UnionType):
        rest = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _type_of(rest[0], inside) if len(rest) == 1 else None
    if isinstance(kind, inspect.BoolType):
        return pa.bool_()
    if isinstance(kind, inspect.IntType):
        return pa.int64()
    if isinstance(kind, inspect.FloatType):
        return pa.float64()
    if isinstance(kind, inspect.BytesType):
        return pa.binary()
    if isinstance(kind, _TEXT):
        return pa.string()
    if isinstance(kind, inspect.EnumType):
        return pa.string() if all(isinstance(m.value, str) for m in kind.cls) else None
    if isinstance(kind, inspect.DictType):
        key, item = _type_of(kind.key_type, inside), _type_of(kind.value_type, inside)
        return None if key != pa.string() or item is None else pa.map_(key, item)
    if isinstance(kind, inspect.DataclassType | inspect.TypedDictType | inspect.StructType):
        return _struct_of(kind, inside)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        item = _type_of(kind.item_type, inside)
        return None if item is None else pa.list_(item)
    return None


def _struct_of(kind: Any, inside: tuple[Any, ...]) -> Any:
    if kind.cls in inside or getattr(kind, "array_like", False) or not kind.fields:
        return None
    fields = []
    for one in kind.fields:
        found = _type_of(one.type, (*inside, kind.cls))
        if found is None:
            return None
        fields.append(pa.field(one.encode_name, found))
    return pa.struct(fields)


def times(milliseconds: Sequence[int | None]) -> Any:
    """Convert milliseconds since 1970 to timestamps; times that Spark lacks become null."""
    microseconds = [
        None if ms is None or not 0 <= ms <= LAST_MS else ms * 1000 for ms in milliseconds
    ]
    return pa.array(microseconds, pa.int64()).cast(TIMESTAMP)
