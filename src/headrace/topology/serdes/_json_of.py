"""JSON into typed classes and back: the serde behind `serdes.json_of`.

Hot path: msgspec encodes and decodes in one call into C each. Everything about the class is looked
at once, when the serde is made: whether JSON can hold it, whether its values are immutable, and
which detours its encoding needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import GenericAlias, UnionType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes.json_schemas import stripped

# Objects of dataclasses with each of their fields, also of those that a document leaves out.
#
# msgspec does not set a field that has a plain default and is left out: the class itself answers
# for
# it. Such an object is equal to one that was made with all fields, and would be written without
# them,
# so equal keys would have other bytes.
#
# Hot path: what `making_whole` returns runs for every record of a class with such fields.


T = TypeVar("T")


class Gaps(NamedTuple):
    """What objects of a class may lack.

    Args:
        defaults: the fields that may be missing, with their values.
        inner: the fields that may hold other objects.
    """

    defaults: tuple[tuple[str, Any], ...]
    inner: tuple[str, ...]


def gaps_in(inner: Mapping[type, tuple[str, ...]]) -> dict[type, Gaps]:
    """The gaps of classes, or nothing where none of them has defaults that may be missing.

    Args:
        inner: the fields of each class that may hold other objects.
    """
    found = {cls: Gaps(_defaults_of(cls), names) for cls, names in inner.items()}
    return found if any(gaps.defaults for gaps in found.values()) else {}


def _defaults_of(cls: type) -> tuple[tuple[str, Any], ...]:
    """The plain defaults of a dataclass; one with slots has all fields set."""
    if not is_dataclass(cls) or cls.__dictoffset__ == 0:
        return ()
    return tuple((f.name, f.default) for f in fields(cls) if f.init and f.default is not MISSING)


def making_whole(decode: Callable[[bytes], T], gaps: Mapping[type, Gaps]) -> Callable[[bytes], T]:
    """Decoding that sets what objects lack.

    Example:
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
    found = gaps.get(value.__class__)
    if found is not None:
        if found.defaults:
            # Its own dict, as a frozen object takes nothing in any other way.
            own = value.__dict__
            for name, default in found.defaults:
                own.setdefault(name, default)
        for name in found.inner:
            _complete(getattr(value, name), gaps)
    elif isinstance(value, dict):
        for key, item in value.items():
            _complete(key, gaps)
            _complete(item, gaps)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _complete(item, gaps)


# What msgspec says of a document that does not fit, apart from what quotes the document itself.
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
    """What the fields of a class, and of the classes in them, say about its serde."""

    immutable: bool = True
    has_float: bool = False
    has_other_keys: bool = False
    comparable: bool = True
    inner: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    """The classes that were seen, and which of their fields may hold other objects."""

    def look(self, kind: inspect.Type, where: str) -> None:
        """Look at one type and, in it, at all others."""
        if isinstance(kind, inspect.Metadata):
            self.look(kind.type, where)
        elif isinstance(kind, inspect.CustomType):
            raise TopologyError(
                f"json_of: {where} has type {kind.cls.__name__}, which JSON cannot hold; take a "
                "type that it can, or make a serde with serdes.serde_from"
            )
        elif isinstance(kind, inspect.UnionType):
            for one in kind.types:
                self.look(one, where)
        elif isinstance(kind, inspect.DictType):
            self.immutable = False
            self.has_other_keys |= not isinstance(kind.key_type, inspect.StrType)
            self.look(kind.key_type, f"a key of {where}")
            self.look(kind.value_type, f"a value of {where}")
        elif hasattr(kind, "fields"):
            self._look_into(kind)
        elif hasattr(kind, "item_types"):
            for one in kind.item_types:
                self.look(one, f"an item of {where}")
        elif hasattr(kind, "item_type"):
            self.immutable &= isinstance(kind, inspect.VarTupleType | inspect.FrozenSetType)
            self.look(kind.item_type, f"an item of {where}")
        else:
            self.has_float |= isinstance(kind, inspect.FloatType | inspect.AnyType)
            self.immutable &= isinstance(kind, _IMMUTABLE)

    def _look_into(self, kind: Any) -> None:
        cls = kind.cls
        if cls in self.inner:
            return
        self.inner[cls] = tuple(one.name for one in kind.fields if not _is_plain(one.type))
        self.immutable &= _is_frozen(kind)
        self.comparable &= cls.__eq__ is not object.__eq__
        for one in kind.fields:
            self.look(one.type, f"field {one.name!r} of {cls.__name__}")


def _is_plain(kind: Any) -> bool:
    """Whether what a field holds is no object of a class, and holds none."""
    return all(isinstance(one, _IMMUTABLE) for one in getattr(kind, "types", (kind,)))


def _is_frozen(kind: Any) -> bool:
    cls = kind.cls
    if isinstance(kind, inspect.StructType):
        return bool(cls.__struct_config__.frozen)
    if isinstance(kind, inspect.DataclassType):
        return bool(getattr(getattr(cls, "__dataclass_params__", None), "frozen", False))
    return isinstance(kind, inspect.NamedTupleType)


@dataclass(frozen=True, slots=True)
class JsonOfSerde(Generic[T]):
    """Compact JSON with sorted keys of values of one class."""

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
        try:
            findings.look(inspect.type_info(self.cls), f"{name_of(self.cls)} itself")
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
        """Encode; what would not read back as an equal object is refused, unless unchecked."""
        data = self._encoded(value)
        if not self.checked:
            return data
        again = self._read_again(value, data)
        # An int in a field of floats is written as the float that it is equal to.
        return self._encode(again) if self._findings.has_float else data

    def normalise(self, value: T, /) -> T:
        """What `deserialize` gives for the value's bytes, or the error of `serialize`."""
        return self._read_again(value, self._encoded(value))

    def written_form(self) -> dict[str, Any] | None:
        """What documents look like, see `headrace.topology.serdes.serde_schemas`."""
        try:
            return {"json": stripped(msgspec.json.schema(self.cls))}
        except (TypeError, ValueError, NameError):
            return None  # JSON Schema has no word for one of its types

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
            where = _difference(value, again, "$")
            raise self._cannot_encode(value, f"`{where}` would read back as another value")
        return again

    def deserialize(self, data: bytes, /) -> T:
        """Decode; fields that the class does not have are left out."""
        try:
            return self.decoder(data)
        except TypeError:
            raise SerdeError(
                f"serde {self.name!r} cannot decode an object of type {type(data).__name__}; "
                "pass bytes"
            ) from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SerdeError(
                f"serde {self.name!r} cannot decode {len(data)} bytes ({explained(error)}); "
                "correct the data, have the class take it (a default for a field that may be "
                "missing, `| None` for null), or pass the serde that the topic was written with"
            ) from None

    def _cannot_encode(self, value: object, reason: str) -> SerdeError:
        return SerdeError(
            f"serde {self.name!r} cannot encode a value of type {type(value).__name__} ({reason}); "
            f"set the fields to what {name_of(self.cls)} declares, or pass another serde"
        )


def _with_other_keys(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Encoding for dicts with keys that are no strings, which the encoder does not sort itself."""

    def encode_with_other_keys(value: Any) -> bytes:
        return encode(msgspec.to_builtins(value, str_keys=True))

    return encode_with_other_keys


def name_of(cls: Any) -> str:
    return cls.__name__ if isinstance(cls, type) and not hasattr(cls, "__args__") else str(cls)


def refuse_other_than_type(given: Any, called: str) -> None:
    """Raise if what no serde can be made for is not even a type, without what it holds.

    Args:
        given: where a class was to be.
        called: how errors call what it was given to.

    Raises:
        TopologyError: it is a string, or another object.
    """
    if isinstance(given, str):
        name = given if given.isidentifier() else "Order"
        raise TopologyError(f"{called}: give the class itself, and not its name: {called}({name})")
    kind = type(given)
    is_type = isinstance(given, (type, GenericAlias, UnionType)) or kind.__module__ == "typing"
    if is_type or given is None:
        return
    written = f": {called}({kind.__name__})" if kind.__module__ != "builtins" else ""
    raise TopologyError(
        f"{called}: give a class, and not an object of the class {kind.__qualname__}{written}"
    )


def explained(error: Exception) -> str:
    """What is wrong with a document and where, without anything that it holds."""
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    said = _SAID.fullmatch(str(error))
    if said is None or said["what"] is None:  # what the class itself raised could quote the value
        return f"{type(error).__name__}: a value is refused"
    return said["what"] + (f" at {said['where']}" if said["where"] else "")


def _difference(value: Any, again: Any, where: str) -> str:
    """The path of the first field that differs."""
    if is_dataclass(value) and type(value) is type(again):
        for one in fields(value):
            mine, other = getattr(value, one.name), getattr(again, one.name)
            if mine != other:
                return _difference(mine, other, f"{where}.{one.name}")
    return where


def json_of_serde(cls: Any, name: str | None, checked: bool) -> JsonOfSerde[Any]:
    """Make the serde of `cls`; see `serdes.json_of`."""
    return JsonOfSerde(name or f"json_of({name_of(cls)})", cls, checked)
