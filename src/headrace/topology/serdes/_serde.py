"""How keys and values become bytes: the protocol, and the classes behind
`headrace.topology.serdes`.

Hot path: encoding and decoding are one call into C each; a failure is looked into afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from json import JSONEncoder
from typing import Any, ClassVar, Generic, Literal, NoReturn, Protocol, Self, TypeVar

import orjson

from headrace.topology.errors import SerdeError

T = TypeVar("T")


class Serde(Protocol[T]):
    """Turns values into bytes and back. None never reaches a serde: null stays null outside."""

    @property
    def name(self) -> str:
        """What errors call this serde."""

    @property
    def immutable(self) -> bool:
        """Whether values cannot be mutated, so that a store may hand out the object itself."""

    @property
    def canonical(self) -> bool:
        """Whether ``serialize(deserialize(b)) == b`` for every ``b`` that it accepts.

        The bytes of an unchanged key are then those that were read.
        """

    # A serde may also have `decoder`, a callable in C that gives what `deserialize` gives for
    # good data and raises anything for other data; `deserialize` is asked then what was wrong.
    #
    # And it may have `exact` and `normalise`, see `headrace.topology.serdes.kept`.

    def serialize(self, value: T, /) -> bytes:
        """Encode one value, or raise `SerdeError`."""

    def deserialize(self, data: bytes, /) -> T:
        """Decode one value, or raise `SerdeError`."""


class TopicSerde(Serde[T], Protocol):
    """A serde that must know the topic that it reads or writes, such as one with a registry."""

    def for_topic(self, topic: str, *, is_key: bool) -> Serde[T]:
        """The serde for the keys or the values of one topic.

        Args:
            topic: its full name; for a store that of its changelog topic, logged or not.
            is_key: whether it is for keys.
        """


def for_topic(serde: Serde[T], topic: str, *, is_key: bool) -> Serde[T]:
    """A serde as it is used with a topic: itself, unless it asks to be told (`TopicSerde`)."""
    tell: Callable[..., Serde[T]] | None = getattr(serde, "for_topic", None)
    return serde if tell is None else tell(topic, is_key=is_key)


def completed(serde: Serde[Any] | None, default: Serde[Any]) -> Serde[Any]:
    """Return a serde with `default` wherever it, or one that it is made of, was given none."""
    if serde is None:
        return default
    complete = getattr(serde, "with_inner_default", None)
    return serde if complete is None else complete(default)


@dataclass(frozen=True, slots=True)
class Around(Generic[T]):
    """What serdes share that write something around the bytes of another one.

    Args:
        inner: the other one; None is to be filled in before it is used.
    """

    inner: Serde[T] | None

    def with_inner_default(self, default: Serde[Any], /) -> Self:
        """The same serde with `default` for the inner one, where none was given."""
        inner = completed(self.inner, default)
        return self if inner is self.inner else replace(self, inner=inner)

    def for_topic(self, topic: str, *, is_key: bool) -> Self:
        """The same serde with the inner one for a topic."""
        inner = None if self.inner is None else for_topic(self.inner, topic, is_key=is_key)
        return self if inner is self.inner else replace(self, inner=inner)


# Which constant of `serdes` takes values of a type.
_TAKES = {
    str: "string",
    bytes: "bytes",
    bool: "json",
    int: "long",
    float: "double",
    dict: "json",
    list: "json",
    tuple: "json",
}
# Which constants of `serdes` write values of a length.
_WRITES = {4: ("integer",), 8: ("long", "double")}


def _is_typed(kind: type) -> bool:
    """Whether it is a class with fields, which `json_of` writes."""
    return hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__")


def refuse_value(name: str, value: object, reason: str = "") -> NoReturn:
    """Raise the error for a value that serde `name` cannot encode."""
    kind = type(value)
    other = _TAKES.get(kind)
    if value is None:
        advice = "None is null and is handled outside of serdes"
    elif other is not None and other != name:
        advice = f"pass value=serdes.{other} (key=serdes.{other} for keys)"
    elif _is_typed(kind):
        own = f"serdes.json_of({kind.__name__})"
        advice = f"pass value={own} where this topic or store is named (key={own} for keys)"
    else:
        advice = "convert it first, or make a serde with serdes.serde_from"
    because = f" ({reason})" if reason else ""
    raise SerdeError(
        f"serde {name!r} cannot encode a value of type {kind.__name__}{because}; {advice}"
    ) from None


def refuse_data(name: str, data: object, reason: str) -> NoReturn:
    """Raise the error for data that serde `name` cannot decode."""
    if not isinstance(data, bytes):
        raise SerdeError(
            f"serde {name!r} cannot decode an object of type {type(data).__name__}; pass bytes"
        ) from None
    others = " or ".join(f"serdes.{other}" for other in _may_have_written(data) if other != name)
    raise SerdeError(
        f"serde {name!r} cannot decode {len(data)} bytes ({reason}); pass the serde that the "
        f"topic was written with, such as value={others} (key= for keys)"
    ) from None


def _may_have_written(data: bytes) -> tuple[str, ...]:
    """The constants of `serdes` that data may be of."""
    try:
        is_text = data.decode().isprintable()
    except UnicodeDecodeError:
        is_text = False
    return ("string", "json", "bytes") if is_text else _WRITES.get(len(data), ("bytes",))


_encode = str.encode
_decode = bytes.decode


@dataclass(frozen=True, slots=True)
class StringSerde:
    """UTF-8, as Kafka's StringSerializer."""

    decoder: ClassVar[Callable[[bytes], str]] = staticmethod(bytes.decode)
    exact: ClassVar[frozenset[type]] = frozenset({str})

    name: str = "string"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: str, /) -> bytes:
        """Encode as UTF-8; lone surrogates are refused."""
        try:
            return _encode(value)
        except TypeError:
            refuse_value(self.name, value)
        except UnicodeEncodeError as error:
            refuse_value(self.name, value, f"{error.reason} at {error.start}")

    def deserialize(self, data: bytes, /) -> str:
        """Decode UTF-8 strictly; nothing is replaced."""
        try:
            return _decode(data)
        except TypeError:
            refuse_data(self.name, data, "")
        except UnicodeDecodeError as error:
            refuse_data(self.name, data, f"{error.reason} at {error.start}, not UTF-8")


@dataclass(frozen=True, slots=True)
class BytesSerde:
    """The bytes themselves, as Kafka's ByteArraySerializer."""

    exact: ClassVar[frozenset[type]] = frozenset({bytes})

    name: str = "bytes"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: bytes, /) -> bytes:
        """Return the value itself; a bytearray is refused, as it may still change."""
        if type(value) is bytes:
            return value
        refuse_value(self.name, value)

    def deserialize(self, data: bytes, /) -> bytes:
        """Return the data itself."""
        if type(data) is bytes:
            return data
        refuse_data(self.name, data, "")


@dataclass(frozen=True, slots=True)
class IntegerSerde:
    """A signed big-endian integer of a fixed width."""

    exact: ClassVar[frozenset[type]] = frozenset({int})

    name: str
    width: Literal[4, 8]
    immutable: bool = True
    canonical: bool = True
    _pack: Callable[[int], bytes] = field(init=False, repr=False, compare=False)
    _unpack: Callable[[bytes], tuple[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        layout = struct.Struct(">i" if self.width == 4 else ">q")
        object.__setattr__(self, "_pack", layout.pack)
        object.__setattr__(self, "_unpack", layout.unpack)

    def __reduce__(self) -> tuple[type[IntegerSerde], tuple[str, int]]:
        return IntegerSerde, (self.name, self.width)  # methods of a Struct cannot be pickled

    def serialize(self, value: int, /) -> bytes:
        """Encode in exactly `width` bytes; what does not fit is refused."""
        if type(value) is int:
            try:
                return self._pack(value)
            except struct.error:
                bits = 8 * self.width
                wider = "; serdes.long has 64" if self.width < 8 else ""
                raise SerdeError(
                    f"serde {self.name!r} cannot encode an int outside of {bits} bits{wider}; "
                    "for larger ints make a serde with serdes.serde_from"
                ) from None
        refuse_value(self.name, value)

    def deserialize(self, data: bytes, /) -> int:
        """Decode exactly `width` bytes."""
        try:
            return self._unpack(data)[0]
        except (struct.error, TypeError):
            refuse_data(self.name, data, f"it takes {self.width}")


_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack


@dataclass(frozen=True, slots=True)
class DoubleSerde:
    """An IEEE 754 double, big-endian, as Kafka's DoubleSerializer. An int that fits is taken."""

    exact: ClassVar[frozenset[type]] = frozenset({float})

    name: str = "double"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: float, /) -> bytes:
        """Encode in 8 bytes; an int that a double cannot hold exactly is refused."""
        if type(value) is float:
            return _pack_double(value)
        return self._serialize_int(value)

    def _serialize_int(self, value: float) -> bytes:
        if type(value) is int:
            try:
                exact = float(value) == value
            except OverflowError:
                exact = False
            if exact:
                return _pack_double(value)
            refuse_value(self.name, value, "a double cannot hold it exactly")
        refuse_value(self.name, value)

    def deserialize(self, data: bytes, /) -> float:
        """Decode exactly 8 bytes."""
        try:
            value: float = _unpack_double(data)[0]
        except (struct.error, TypeError):
            refuse_data(self.name, data, "it takes 8")
        return value


_dumps = orjson.dumps
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""The integers that orjson takes."""
_loads = orjson.loads
# What orjson would write, but loads would read as something else, is refused: otherwise the type
# of a stored value would change with the commit.
_JSON_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_NULL = b"null"
_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_encode_finite = JSONEncoder(
    allow_nan=False, check_circular=False, default=lambda value: getattr(value, "value", None)
).encode


_PLAIN = frozenset({int, str, bool, type(None)})
_INFINITE = float("inf")


def is_plain(value: Any) -> bool:
    """Whether a value is just what its bytes give back: types, finite numbers, order of keys.

    >>> is_plain({"a": [1, 2.5], "b": None}), is_plain([(1,)]), is_plain({"b": 1, "a": 2})
    (True, False, False)
    """
    kind = value.__class__
    if kind in _PLAIN:
        return True
    if kind is float:
        finite: bool = -_INFINITE < value < _INFINITE
        return finite
    if kind is dict:
        last = ""
        for key, one in value.items():
            if key.__class__ is not str or key < last:
                return False
            if one.__class__ not in _PLAIN and not is_plain(one):
                return False
            last = key
        return True
    if kind is list:
        return all(one.__class__ in _PLAIN or is_plain(one) for one in value)
    return False


@dataclass(frozen=True, slots=True)
class JsonSerde:
    """Compact JSON with sorted keys.

    Equal bytes mean equal documents: 1, 1.0 and true differ. It is not `canonical`, as it reads
    documents with spaces or other orders of keys too.
    """

    decoder: ClassVar[Callable[[bytes], Any]] = staticmethod(orjson.loads)
    exact: ClassVar[frozenset[type]] = frozenset({int, str, bool})

    name: str = "json"
    immutable: bool = False
    canonical: bool = False

    def reserialize(self, value: Any, data: bytes, /) -> bytes:
        """What `serialize` gives for a value read from `data`, quicker for plain strings."""
        if value.__class__ is str and data[0] == data[-1] == _QUOTE and _BACKSLASH not in data:
            return data
        return self.serialize(value)

    def normalise(self, value: Any, /) -> Any:
        """What `deserialize` gives for the value's bytes; the value itself if it is that."""
        try:
            plain = is_plain(value)
        except RecursionError:
            plain = False  # `serialize` says that it is nested too deeply
        return value if plain else _loads(self.serialize(value))

    def serialize(self, value: Any, /) -> bytes:
        """Encode; refuses None, NaN, infinities, ints beyond 64 bits and keys that are no str."""
        if value.__class__ is int and _SMALLEST <= value <= _LARGEST:
            return b"%d" % value  # in half of the time: sums and counts are nothing else
        try:
            # What orjson gives holds its whole first buffer of 4 KiB for as long as it is kept.
            data = b"%b" % _dumps(value, None, _JSON_OPTIONS)
        except TypeError as error:
            refuse_value(self.name, value, str(error))
        # orjson writes null for NaN and the infinities. `find` looks at once, where `in` asks first
        # whether the bytes are a number, and that costs more than all else here.
        if value.__class__ not in JsonSerde.exact and data.find(_NULL) >= 0:
            self._check_nulls(value)
        return data

    def _check_nulls(self, value: Any) -> None:
        if value is None:
            refuse_value(self.name, value)
        try:
            _encode_finite(value)
        except ValueError:
            raise SerdeError(
                f"serde {self.name!r} cannot encode NaN or infinity (in a value of type "
                f"{type(value).__name__}), as JSON has none; replace it by None or a string, "
                "or pass value=serdes.double (key=serdes.double for keys) for a plain float"
            ) from None

    def deserialize(self, data: bytes, /) -> Any:
        """Decode any JSON; an int beyond 64 bits reads as the nearest float, ``null`` as None."""
        try:
            return _loads(data)
        except orjson.JSONDecodeError as error:
            refuse_data(self.name, data, str(error))


@dataclass(frozen=True, slots=True)
class FunctionSerde(Generic[T]):
    """A serde made of two functions."""

    name: str
    _serialize: Callable[[T], bytes]
    _deserialize: Callable[[bytes], T]
    immutable: bool
    canonical: bool

    def serialize(self, value: T, /) -> bytes:
        """Call the user's function; its exception becomes the cause of a `SerdeError`."""
        try:
            data = self._serialize(value)
        except Exception as error:
            raise self._failed(
                f"encode a value of type {type(value).__name__}: its serialize function raised "
                f"{type(error).__name__}; correct the function, or pass the serde of that type"
            ) from error
        if type(data) is bytes:
            return data
        raise SerdeError(
            f"the serialize function of serde {self.name!r} returned {type(data).__name__} for a "
            f"value of type {type(value).__name__}; return bytes"
        )

    def deserialize(self, data: bytes, /) -> T:
        """Call the user's function; its exception becomes the cause of a `SerdeError`."""
        try:
            return self._deserialize(data)
        except Exception as error:
            raise self._failed(
                f"decode {len(data)} bytes: its deserialize function raised "
                f"{type(error).__name__}; correct the function, or pass the serde that the topic "
                "was written with"
            ) from error

    def _failed(self, what: str) -> SerdeError:
        error = SerdeError(f"serde {self.name!r} cannot {what}")
        error.is_of_function = True
        return error
