"""JSON serde of typed classes, behind `serdes.json_of`.

Hot path: encoding and decoding are one msgspec call in C each. The class is inspected once, when
the serde is created: whether JSON can represent it, whether its values are immutable, and which
additional steps its encoding needs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import GenericAlias, UnionType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes._serde import refuse_bytes, refuse_object
from headrace.topology.serdes.json_schemas import stripped

# Decoding of dataclasses with all fields set, including fields that a document omits.
#
# msgspec does not set an omitted field with a plain default: reading it returns the attribute of
# the class. Such an object is equal to an object with all fields, but would be encoded without
# them, so equal keys would have different bytes.
#
# Hot path: the result of `making_whole` is called for every record of a class with such fields.


T = TypeVar("T")

_PREPARING = threading.RLock()


def prepare_type(cls: Any) -> None:
    """Have msgspec inspect a type, so that any threads can convert to it at the same time.

    Call it before any conversion to a type that is not built in. msgspec inspects a class when it
    is used for the first time, and another thread that uses it meanwhile crashes the process. A
    type that msgspec does not support fails later, where it is used.
    """
    with _PREPARING, suppress(TypeError, NameError):
        msgspec.msgpack.Decoder(cls)


class Gaps(NamedTuple):
    """Fields that decoded objects of a class may lack.

    Args:
        defaults: fields that may be missing, with their default values.
        inner: fields that may contain other objects.
    """

    defaults: tuple[tuple[str, Any], ...]
    inner: tuple[str, ...]


def gaps_in(inner: Mapping[type, tuple[str, ...]]) -> dict[type, Gaps]:
    """Return the gaps by class; empty if no class has defaults that may be missing."""
    gaps_by_class = {cls: Gaps(_defaults_of(cls), names) for cls, names in inner.items()}
    return gaps_by_class if any(gaps.defaults for gaps in gaps_by_class.values()) else {}


def _defaults_of(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the plain defaults of a dataclass; with slots none, because all fields are set."""
    if not is_dataclass(cls) or cls.__dictoffset__ == 0:
        return ()
    return tuple((f.name, f.default) for f in fields(cls) if f.init and f.default is not MISSING)


def making_whole(decode: Callable[[bytes], T], gaps: Mapping[type, Gaps]) -> Callable[[bytes], T]:
    """Return a decoder that sets missing fields of decoded objects.

    >>> import msgspec
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     id: int
    ...     items: int = 1
    >>> decode = msgspec.json.Decoder(Order).decode
    >>> vars(decode(b'{"id":7}'))
    {'id': 7}
    >>> vars(making_whole(decode, gaps_in({Order: ()}))(b'{"id":7}'))
    {'id': 7, 'items': 1}
    """
    if not gaps:
        return decode

    def decode_whole(data: bytes, /) -> T:
        value = decode(data)
        _complete(value, gaps)
        return value

    return decode_whole


def _complete(value: Any, gaps: Mapping[type, Gaps]) -> None:
    class_gaps = gaps.get(value.__class__)
    if class_gaps is not None:
        if class_gaps.defaults:
            # Write to its dict, because a frozen object has no other way to set attributes.
            own = value.__dict__
            for name, default in class_gaps.defaults:
                own.setdefault(name, default)
        for name in class_gaps.inner:
            _complete(getattr(value, name), gaps)
    elif isinstance(value, dict):
        for key, item in value.items():
            _complete(key, gaps)
            _complete(item, gaps)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _complete(item, gaps)


# The parts of msgspec's messages that do not quote the document.
_SAID = re.compile(
    r"(?P<what>Expected `[^`]+`(?:, got `\w+`| [<>]=? [-\d.]+)?|Object missing required field `\w+`"
    r"|Invalid (?:enum value|value|UUID|decimal string|RFC3339 encoded \w+|ISO8601 duration"
    r"|base64 encoded string)|(?:Integer|Number|Duration) (?:value )?out of range)?"
    r".*?(?: - at (?P<where>(?:`key` in )?`\$[^`]*`))?",
    re.S,
)
_IMMUTABLE = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.TimeType,
    inspect.DateType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
)


@dataclass(slots=True)
class Findings:
    """Properties of a class and of its fields' classes that determine its serde."""

    immutable: bool = True
    has_float: bool = False
    has_other_keys: bool = False
    comparable: bool = True
    inner: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    """Inspected classes, with their fields that may contain other objects."""

    def add(self, kind: inspect.Type, where: str) -> None:
        if isinstance(kind, inspect.Metadata):
            self.add(kind.type, where)
        elif isinstance(kind, inspect.CustomType):
            raise TopologyError(
                f"json_of: {where} has type {kind.cls.__name__}, which JSON cannot hold; use a "
                "type that JSON supports, or create a serde with serdes.serde_from"
            )
        elif isinstance(kind, inspect.UnionType):
            for member in kind.types:
                self.add(member, where)
        elif isinstance(kind, inspect.DictType):
            self.immutable = False
            self.has_other_keys |= not isinstance(kind.key_type, inspect.StrType)
            self.add(kind.key_type, f"a key of {where}")
            self.add(kind.value_type, f"a value of {where}")
        elif hasattr(kind, "fields"):
            self._look_into(kind)
        elif hasattr(kind, "item_types"):
            for item_type in kind.item_types:
                self.add(item_type, f"an item of {where}")
        elif hasattr(kind, "item_type"):
            self.immutable &= isinstance(kind, inspect.VarTupleType | inspect.FrozenSetType)
            self.add(kind.item_type, f"an item of {where}")
        else:
            self.has_float |= isinstance(kind, inspect.FloatType | inspect.AnyType)
            self.immutable &= isinstance(kind, _IMMUTABLE)

    def _look_into(self, kind: Any) -> None:
        cls = kind.cls
        if cls in self.inner:
            return
        self.inner[cls] = tuple(member.name for member in kind.fields if not _is_plain(member.type))
        self.immutable &= _is_frozen(kind)
        self.comparable &= cls.__eq__ is not object.__eq__
        for member in kind.fields:
            self.add(member.type, f"field {member.name!r} of {cls.__name__}")


def _is_plain(kind: Any) -> bool:
    return all(isinstance(member, _IMMUTABLE) for member in getattr(kind, "types", (kind,)))


def _is_frozen(kind: Any) -> bool:
    cls = kind.cls
    if isinstance(kind, inspect.StructType):
        return bool(cls.__struct_config__.frozen)
    if isinstance(kind, inspect.DataclassType):
        return bool(getattr(getattr(cls, "__dataclass_params__", None), "frozen", False))
    return isinstance(kind, inspect.NamedTupleType)


@dataclass(frozen=True, slots=True)
class JsonOfSerde(Generic[T]):
    """Compact JSON with sorted keys of the objects of a class."""

    name: str
    cls: Any
    checked: bool
    immutable: bool = field(init=False)
    canonical: bool = field(init=False, default=False)
    decoder: Callable[[bytes], T] = field(init=False, repr=False, compare=False)
    _encode: Callable[[Any], bytes] = field(init=False, repr=False, compare=False)
    _findings: Findings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        findings = Findings()
        prepare_type(self.cls)
        try:
            findings.add(inspect.type_info(self.cls), f"{name_of(self.cls)} itself")
            decoder: Callable[[bytes], T] = msgspec.json.Decoder(self.cls).decode
        except (TypeError, NameError) as error:
            refuse_other_than_type(self.cls, "json_of")
            raise TopologyError(f"json_of: {name_of(self.cls)} cannot be JSON: {error}") from error
        encode = msgspec.json.Encoder(order="sorted").encode
        for name, value in (
            ("immutable", findings.immutable),
            ("decoder", making_whole(decoder, gaps_in(findings.inner))),
            ("_encode", _with_other_keys(encode) if findings.has_other_keys else encode),
            ("_findings", findings),
        ):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[JsonOfSerde[Any]], tuple[str, Any, bool]]:
        return JsonOfSerde, (self.name, self.cls, self.checked)  # decoders cannot be pickled

    def serialize(self, value: T, /) -> bytes:
        """Encode a value; if `checked`, reject a value that would not decode to an equal object."""
        data = self._encoded(value)
        if not self.checked:
            return data
        again = self._read_again(value, data)
        # An int in a float field is written as the equal float.
        return self._encode(again) if self._findings.has_float else data

    def normalise(self, value: T, /) -> T:
        """Return the value as its bytes decode, or raise the error of `serialize`."""
        return self._read_again(value, self._encoded(value))

    def written_form(self) -> dict[str, Any] | None:
        try:
            return {"json": stripped(msgspec.json.schema(self.cls))}
        except (TypeError, ValueError, NameError):
            return None  # JSON Schema cannot represent a type

    def _encoded(self, value: T) -> bytes:
        try:
            return self._encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._cannot_encode(value, type(error).__name__) from None

    def _read_again(self, value: T, data: bytes) -> T:
        try:
            again = self.decoder(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._cannot_encode(value, explained(error)) from None
        if self.checked and self._findings.comparable and again != value:
            where, read = _difference(value, again, "$"), type(again)
            as_what = "another value" if where != "$" or read is type(value) else name_of(read)
            raise self._cannot_encode(value, f"`{where}` would read back as {as_what}")
        return again

    def deserialize(self, data: bytes, /) -> T:
        """Decode a value; fields that the class does not have are ignored."""
        try:
            return self.decoder(data)
        except TypeError:
            refuse_object(self.name, data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            advice = (
                "correct the data, let the class accept it (a default for a field that may be "
                "missing, `| None` for null), or pass the serde that the topic was written with"
            )
            refuse_bytes(self.name, data, explained(error), advice=advice)

    def _cannot_encode(self, value: object, reason: str) -> SerdeError:
        return SerdeError(
            f"serde {self.name!r} cannot encode a value of type {type(value).__name__} ({reason}); "
            f"set the fields as {name_of(self.cls)} declares them, or pass another serde"
        )


def _with_other_keys(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return an encoder for dicts with keys that are not strings, which msgspec does not sort."""

    def encode_with_other_keys(value: Any) -> bytes:
        return encode(msgspec.to_builtins(value, str_keys=True))

    return encode_with_other_keys


def name_of(cls: Any) -> str:
    return cls.__name__ if isinstance(cls, type) and not hasattr(cls, "__args__") else str(cls)


def refuse_other_than_type(cls: Any, called: str) -> None:
    """Raise if an argument is not a type; the message does not contain its content."""
    if isinstance(cls, str):
        name = cls if cls.isidentifier() else "Order"
        raise TopologyError(f"{called}: give the class itself, and not its name: {called}({name})")
    kind = type(cls)
    is_type = isinstance(cls, (type, GenericAlias, UnionType)) or kind.__module__ == "typing"
    if is_type or cls is None:
        return
    written = f": {called}({kind.__name__})" if kind.__module__ != "builtins" else ""
    raise TopologyError(
        f"{called}: give a class, and not an object of the class {kind.__qualname__}{written}"
    )


def explained(error: Exception) -> str:
    """Describe an error of a document and its location, without the document's content."""
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    match = _SAID.fullmatch(str(error))
    if match is None or match["what"] is None:  # an error of the class itself may quote the value
        return f"{type(error).__name__}: a value is refused"
    return match["what"] + (f" at {match['where']}" if match["where"] else "")


def _difference(value: Any, again: Any, where: str) -> str:
    """Return the path of the first field that differs."""
    if is_dataclass(value) and type(value) is type(again):
        for member in fields(value):
            own, decoded = getattr(value, member.name), getattr(again, member.name)
            if own != decoded:
                return _difference(own, decoded, f"{where}.{member.name}")
    return where


def json_of_serde(cls: Any, name: str | None, checked: bool) -> JsonOfSerde[Any]:
    return JsonOfSerde(name or f"json_of({name_of(cls)})", cls, checked)
