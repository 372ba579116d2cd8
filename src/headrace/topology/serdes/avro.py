r"""Avro serdes: bare Avro, and the wire format of schema registries.

Import it by its name (``from headrace import avro``); no other module imports fastavro.

    bare:        the Avro bytes
    registered:  00  schema id (4, big-endian)  the Avro bytes

A record is a dict, or an object of the class that is passed as `into`. Values that fastavro would
coerce silently are rejected: a float or a bool in an int field, a field that the schema does not
have.

Examples:
    >>> schema = {"type": "record", "name": "Order", "fields": [
    ...     {"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}]}
    >>> orders = serde(schema)
    >>> orders.serialize({"id": 3})
    b'\x06\x00'
    >>> orders.deserialize(b"\x06\x04hi")
    {'id': 3, 'note': 'hi'}
    >>> registered(schema, registry=MemoryRegistry(), subject="orders-value").serialize({"id": 3})
    b'\x00\x00\x00\x00\x01\x06\x00'
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, Generic, Literal, NoReturn, get_args
from uuid import UUID

import msgspec
from typing_extensions import TypeVar

try:
    from fastavro import parse_schema, schemaless_reader, schemaless_writer
    from fastavro.schema import SchemaParseException, UnknownType
    from fastavro.validation import ValidationError, validate
except ImportError as error:
    raise ImportError(
        f"Avro requires {error.name}. Install it: pip install 'headrace[avro]'", name=error.name
    ) from error

from headrace.topology.arguments import require_choice
from headrace.topology.errors import RegistryError, SchemaUnknownError, SerdeError, TopologyError
from headrace.topology.serdes._json_of import Findings, explained, name_of, prepare_type
from headrace.topology.serdes._serde import Serde, refuse_bytes
from headrace.topology.serdes.schema_registry import (
    FileRegistry,
    MemoryRegistry,
    SchemaRegistry,
    incompatibility,
)

__all__ = ["FileRegistry", "MemoryRegistry", "SchemaRegistry", "registered", "serde"]

T = TypeVar("T", default=Any)
Schema = str | Mapping[str, Any] | Sequence[Any]
SubjectName = Literal["topic-name", "record-name", "topic-record-name"]

_KEPT = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)
_PLAIN = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_WITH_FIELDS = (
    msgspec.inspect.DataclassType,
    msgspec.inspect.StructType,
    msgspec.inspect.TypedDictType,
)
_MAGIC = 0
_HEADER = struct.Struct(">bi")


@dataclass(frozen=True, slots=True)
class _Schema:
    """Schema as text, and as parsed by fastavro."""

    normal: str
    text: str = field(compare=False, repr=False)
    parsed: Any = field(compare=False, repr=False)

    @property
    def full_name(self) -> str:
        if isinstance(self.parsed, dict):
            return str(self.parsed.get("name", self.parsed["type"]))
        return self.parsed if isinstance(self.parsed, str) else "union"


def _parse(schema: Schema) -> _Schema:
    if isinstance(schema, str) and schema.lstrip()[:1] not in ("{", "[", '"'):
        schema = json.dumps(schema)  # a type name without quotes
    try:
        raw: Any = json.loads(schema) if isinstance(schema, str) else schema
        text = schema if isinstance(schema, str) else json.dumps(raw)
        # Sort the keys, so that equivalent texts of a schema are equal.
        return _Schema(json.dumps(raw, sort_keys=True), text, parse_schema(raw))
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise TopologyError(
            f"the Avro schema cannot be read: {type(error).__name__}: {error}"
        ) from error


def _without(schema: Any, *names: str) -> Any:
    """Return a schema without some attributes, at any depth except in default values."""
    if isinstance(schema, list):
        return [_without(branch, *names) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name == "default" else _without(value, *names)
        for name, value in schema.items()
        if name not in names
    }


@dataclass(frozen=True, slots=True)
class _Shape:
    """Name, class and checks of a serde's values."""

    name: str
    into: Any = None
    checked: bool = True

    def __post_init__(self) -> None:
        if self.into is not None:
            prepare_type(self.into)

    def encode(self, schema: _Schema, value: Any, prefix: bytes = b"") -> bytes:
        """Return `prefix` and the bytes of a value, or raise a `SerdeError` with the field."""
        out = BytesIO()
        out.write(prefix)
        plain = value
        try:
            if self.into is not None:
                if isinstance(self.into, type) and type(value) is not self.into:
                    self._cannot_encode(value, f"it must be of type {name_of(self.into)}")
                plain = msgspec.to_builtins(value, builtin_types=_KEPT)
            if self.checked:
                validate(plain, schema.parsed, strict=False)
            schemaless_writer(out, schema.parsed, plain, strict_allow_default=self.checked)
        except ValidationError as error:
            self._cannot_encode(value, _invalid(error))
        except ValueError as error:
            is_known = str(error).startswith(("no value", "record contains", "Field "))
            self._cannot_encode(value, str(error) if is_known else type(error).__name__)
        except (TypeError, OverflowError, AttributeError, KeyError, IndexError) as error:
            self._cannot_encode(value, type(error).__name__)
        return out.getvalue()

    def decode(self, writer: _Schema, reader: _Schema | None, data: bytes, skip: int = 0) -> Any:
        """Return the value of the bytes after the first `skip`, converted to the reader schema."""
        source = BytesIO(data)
        source.seek(skip)
        try:
            reader_schema = None if reader is None else reader.parsed
            value = schemaless_reader(source, writer.parsed, reader_schema)
        except Exception as error:
            self.cannot_decode(data, f"{type(error).__name__}: not data of {writer.full_name}")
        if source.tell() != len(data):
            self.cannot_decode(data, f"{len(data) - source.tell()} bytes follow the value")
        if self.into is None:
            return value
        try:
            return msgspec.convert(value, self.into, builtin_types=_KEPT)
        except (msgspec.MsgspecError, ValueError) as error:
            self.cannot_decode(data, f"{explained(error)} for {name_of(self.into)}")

    def of_plain(self, plain: Any) -> Any:
        """Return the value that corresponds to the dicts and lists of a JSON document."""
        if self.into is None:
            return plain
        try:
            return msgspec.convert(plain, self.into)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(
                f"serde {self.name!r} cannot create {name_of(self.into)} from it: "
                f"{explained(error)}"
            ) from error

    def _cannot_encode(self, value: object, reason: str) -> NoReturn:
        raise SerdeError(
            f"serde {self.name!r} cannot encode a value of type {type(value).__name__} ({reason}); "
            "make it a value of the schema, or pass another serde"
        ) from None

    def cannot_decode(self, data: bytes, reason: str) -> NoReturn:
        advice = "pass the serde and the schema that the topic was written with"
        refuse_bytes(self.name, data, reason, advice=advice)

    def for_schema(self, schema: _Schema | None) -> _Shape:
        """Return this object if the schema has all fields that its class requires, or raise."""
        text = None if schema is None else json.loads(schema.text)
        if self.into is None or not isinstance(text, dict) or text.get("type") != "record":
            return self
        kind = msgspec.inspect.type_info(self.into)
        if isinstance(kind, _WITH_FIELDS):
            names = {field["name"] for field in text["fields"]}
            lacks = [
                f.encode_name for f in kind.fields if f.required and f.encode_name not in names
            ]
            if lacks:
                raise TopologyError(
                    f"{name_of(self.into)} requires {' and '.join(lacks)}, which the schema of "
                    f"{text['name']} does not have, so no record could be read; give the field a "
                    "default, or use the schema that has it"
                )
        return self

    def immutable(self, schema: _Schema | None) -> bool:
        """Return whether decoded values cannot be mutated."""
        if self.into is None:
            return schema is not None and schema.full_name in _PLAIN
        findings = Findings()
        findings.add(msgspec.inspect.type_info(self.into), name_of(self.into))
        return findings.immutable


def _invalid(error: ValidationError) -> str:
    """Describe the field that does not match the schema, without its content."""
    if not error.errors:
        return "the schema has no values"
    invalid = error.errors[0]
    kind = invalid.schema.get("type") if isinstance(invalid.schema, dict) else invalid.schema
    more = " or ".join(str(e.schema) for e in error.errors) if len(error.errors) > 1 else kind
    return f"field {invalid.field!r} is not {more}" if invalid.field else f"it is not {kind}"


@dataclass(frozen=True, slots=True)
class AvroSerde(Generic[T]):
    """Bare Avro with a fixed schema; see `serde`."""

    def __repr__(self) -> str:
        return f"<AvroSerde {self.name}>"

    schema: _Schema
    reader: _Schema | None
    shape: _Shape
    immutable: bool = field(init=False)
    canonical: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "immutable", self.shape.immutable(self.reader or self.schema))

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def key_form(self) -> tuple[str, object]:
        """Properties that determine the serde's bytes (see `key_forms`)."""
        return "Avro", self.schema.normal

    def written_form(self) -> dict[str, Any]:
        return {"avro": _without(json.loads(self.schema.normal), "doc", "default", "aliases")}

    def of_plain(self, plain: Any, /) -> Any:
        return self.shape.of_plain(plain)

    def serialize(self, value: T, /) -> bytes:
        if self.reader is not None:
            raise SerdeError(
                f"serde {self.name!r} reads older data with a newer schema and cannot write; "
                "write with avro.serde of the newer schema"
            )
        return self.shape.encode(self.schema, value)

    def deserialize(self, data: bytes, /) -> T:
        if type(data) is not bytes:
            self.shape.cannot_decode(b"", f"an object of type {type(data).__name__}")
        value: T = self.shape.decode(self.schema, self.reader, data)
        return value


@dataclass(frozen=True, slots=True)
class RegisteredSerde(Generic[T]):
    """Avro in the wire format of schema registries; see `registered`."""

    def __repr__(self) -> str:
        # Do not print the registry, because its repr may contain credentials.
        subject = "" if self.subject is None else f" subject={self.subject}"
        return f"<RegisteredSerde {self.name}{subject}>"

    schema: _Schema | None
    registry: SchemaRegistry
    subject: str | None
    subject_name: SubjectName
    auto_register: bool
    shape: _Shape
    immutable: bool = field(init=False)
    canonical: bool = field(init=False, default=False)
    _header: list[bytes] = field(init=False, repr=False, compare=False, default_factory=list)
    _writers: dict[int, _Schema] = field(repr=False, compare=False, default_factory=dict)
    _bound: dict[str, RegisteredSerde[T]] = field(repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "immutable", self.shape.immutable(self.schema))

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def key_form(self) -> tuple[str, object]:
        """Properties that determine the bytes: a schema has the same id in all subjects."""
        what = self if self.schema is None else (self.registry, self.schema.normal)
        return "registered Avro", what

    def written_form(self) -> dict[str, Any] | None:
        if self.schema is None:
            return None
        return {"registered": _without(json.loads(self.schema.normal), "doc")}

    def for_topic(self, topic: str, *, is_key: bool) -> RegisteredSerde[T]:
        if self.subject is not None:
            return self
        subject = f"{topic}-{'key' if is_key else 'value'}"
        if self.subject_name == "topic-record-name":
            subject = f"{topic}-{self.schema.full_name if self.schema else 'unknown'}"
        if subject not in self._bound:
            self._bound[subject] = replace(self, subject=subject)
        return self._bound[subject]

    def of_plain(self, plain: Any, /) -> Any:
        return self.shape.of_plain(plain)

    def serialize(self, value: T, /) -> bytes:
        """Encode a value after the schema's id; the first call gets the id from the registry."""
        if not self._header:
            self._header.append(_HEADER.pack(_MAGIC, self._own_id()))
        assert self.schema is not None
        return self.shape.encode(self.schema, value, self._header[0])

    def _own_id(self) -> int:
        if self.schema is None:
            raise SerdeError(
                f"serde {self.name!r} has no schema to write with, so it can only read; give "
                "avro.registered a schema"
            )
        if self.subject is None:
            raise RegistryError(
                f"serde {self.name!r} has no subject, because its topic is unknown; give "
                "avro.registered subject=..., or subject_name='record-name'"
            )
        if self.auto_register:
            return self.registry.register(self.subject, self.schema.text)
        return self.registry.id_of(self.subject, self.schema.text)

    def deserialize(self, data: bytes, /) -> T:
        """Decode with the schema whose id precedes the value, converted to the serde's schema."""
        if type(data) is not bytes or len(data) < _HEADER.size:
            what = f"registered Avro begins with {_HEADER.size} bytes of header"
            self.shape.cannot_decode(data if type(data) is bytes else b"", what)
        magic, schema_id = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            begins = f"it begins with byte {data[0]:#04x}, where registered Avro begins with 0x00"
            self.shape.cannot_decode(data, f"{begins}; avro.serde reads bare Avro")
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = self._look_up(schema_id, data)
        reader = None if self.schema is None or writer == self.schema else self.schema
        value: T = self.shape.decode(writer, reader, data, _HEADER.size)
        return value

    def _look_up(self, schema_id: int, data: bytes) -> _Schema:
        schema = f"schema id {schema_id}, subject {self.subject!r}"
        try:
            text = self.registry.schema(schema_id)
        except SchemaUnknownError as error:
            reason = f"{schema}: {error}; the data may be from another registry"
            self.shape.cannot_decode(data, reason)
        try:
            writer = _parse(text)
        except TopologyError as error:
            self.shape.cannot_decode(data, f"{schema}: {error}")
        if self.schema is not None:
            why = incompatibility(self.schema.text, writer.text)
            if why is not None:
                name = self.schema.full_name
                self.shape.cannot_decode(data, f"{schema} cannot be read as {name}: {why}")
        return writer


def serde(
    schema: Schema,
    /,
    *,
    into: type[T] | None = None,
    reader: Schema | None = None,
    name: str | None = None,
    checked: bool = True,
) -> Serde[T]:
    r"""Create a serde of bare Avro: the bytes of a value, without the schema or its id.

    Args:
        schema: the schema that the topic's data is written with, as JSON text or as its loaded
            form.
        into: a dataclass, or any other class that `serdes.json_of` accepts, for the values; None
            for dicts.
        reader: a newer schema to which values are converted; such a serde cannot write.
        name: the serde's name in errors; None uses ``avro(Order)``.
        checked: whether to validate each value before it is written, so that no value is coerced
            and no field is omitted.

    Returns:
        The serde. Its errors contain the field, never the value.

    Raises:
        TopologyError: a schema is not valid, `reader` cannot read data of `schema`, or the schema
            does not have a field that the class requires.

    Examples:
        >>> serde("long").serialize(-2)
        b'\x03'
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Order:
        ...     id: int
        >>> schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
        >>> serde(schema, into=Order).deserialize(b"\x06")
        Order(id=3)
    """
    written = _parse(schema)
    read = None if reader is None else _parse(reader)
    if read is not None:
        why = incompatibility(read.text, written.text)
        if why is not None:
            raise TopologyError(f"{read.full_name} cannot read data of the schema: {why}")
    shape = _Shape(name or f"avro({written.full_name})", into, checked).for_schema(read or written)
    return AvroSerde(written, read, shape)


def registered(
    schema: Schema | None = None,
    /,
    *,
    registry: SchemaRegistry,
    into: type[T] | None = None,
    subject: str | None = None,
    subject_name: SubjectName = "topic-name",
    auto_register: bool = True,
    name: str | None = None,
    checked: bool = True,
) -> Serde[T]:
    """Create a serde of Avro in the wire format of schema registries, which contains the schema's
    id.

    Data is read with the schema of its id, and converted to `schema`. Each schema is looked up
    once; the serde's own schema is registered when the first value is written.

    Args:
        schema: the schema to write with, and to which values are converted; None reads each record
            with its own schema.
        registry: the schema registry; `MemoryRegistry` and `FileRegistry` need no server.
        into: see `serde`.
        subject: the subject to register under; None generates it by `subject_name`.
        subject_name: "topic-name" for ``<topic>-value`` and ``<topic>-key``, "record-name" for the
            full name of the schema, "topic-record-name" for both with a hyphen. A topology passes
            the names of its topics to the serde, including internal topics. If a sink chooses the
            topic for each record, pass a subject or use "record-name".
        auto_register: whether to register a missing schema; False requires that it is registered.
        name: the serde's name in errors; None uses ``registered(Order)``.
        checked: see `serde`.

    Returns:
        The serde. It raises `RegistryError` if the registry does not answer or rejects the schema,
        which is not the fault of a record.

    Raises:
        TopologyError: the schema is not valid, or does not have a field that the class requires.
    """
    require_choice("subject_name", subject_name, get_args(SubjectName))
    own = None if schema is None else _parse(schema)
    if subject is None and subject_name == "record-name" and own is not None:
        subject = own.full_name
    shape = _Shape(name or f"registered({own.full_name if own else ''})", into, checked).for_schema(
        own
    )
    return RegisteredSerde(own, registry, subject, subject_name, auto_register, shape)
