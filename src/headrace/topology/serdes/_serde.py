"""Serde protocol, and the classes behind `headrace.topology.serdes`.

Hot path: encoding and decoding are one call into C each; failures are analyzed afterwards.
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
    """Encoder and decoder of values. It is never called with None: null is handled outside.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver
        >>> class Ascii(Serde[str]):
        ...     name, immutable, canonical = "ascii", True, True
        ...     def serialize(self, value: str) -> bytes:
        ...         return value.encode("ascii")
        ...     def deserialize(self, data: bytes) -> str:
        ...         return data.decode("ascii")
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key=Ascii(), value=Ascii()).to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("in").send("a", "tea")
        ...     driver.output("out").as_dict()
        {'a': 'tea'}
    """

    @property
    def name(self) -> str:
        """The serde's name in errors."""

    @property
    def immutable(self) -> bool:
        """Whether values cannot be mutated, so that a store may return the object itself."""

    @property
    def canonical(self) -> bool:
        """Whether ``serialize(deserialize(b)) == b`` for every ``b`` that it accepts.

        If true, an unchanged key is written with the bytes that were read.
        """

    # A serde may also have `decoder`, a callable in C that returns the result of `deserialize` for
    # valid data and raises any exception for other data; `deserialize` then raises the real error.
    #
    # It may have `exact` and `normalise`, see `headrace.topology.serdes.normalise`.
    #
    # A serde that requires the name of its topic, such as a serde with a schema registry, has
    # ``for_topic(topic, *, is_key)``, which returns the serde for the topic's keys or values. The
    # topic's name is complete; for a store it is its changelog's, whether or not it is logged.

    def serialize(self, value: T, /) -> bytes:
        """Encode a value, or raise `SerdeError`."""

    def deserialize(self, data: bytes, /) -> T:
        """Decode a value, or raise `SerdeError`."""


def for_topic(serde: Serde[T], topic: str, *, is_key: bool) -> Serde[T]:
    """Return the serde for a topic: the serde itself, unless it requires the topic's name."""
    bind: Callable[..., Serde[T]] | None = getattr(serde, "for_topic", None)
    return serde if bind is None else bind(topic, is_key=is_key)


def completed(serde: Serde[Any] | None, default: Serde[Any]) -> Serde[Any]:
    """Return a serde with `default` for each missing serde, including inner serdes."""
    if serde is None:
        return default
    complete = getattr(serde, "with_inner_default", None)
    return serde if complete is None else complete(default)


@dataclass(frozen=True, slots=True)
class Compound:
    """Base class of serdes that consist of other serdes, in the fields named by `inners`."""

    inners: ClassVar[tuple[str, ...]]

    def with_inner_default(self, default: Serde[Any], /) -> Self:
        """Return a copy with `default` for each inner serde that is None."""
        return self._with(lambda inner: completed(inner, default))

    def for_topic(self, topic: str, *, is_key: bool) -> Self:
        """Return a copy with the inner serdes for a topic."""
        return self._with(
            lambda inner: None if inner is None else for_topic(inner, topic, is_key=is_key)
        )

    def _with(self, change: Callable[[Serde[Any] | None], Serde[Any] | None]) -> Self:
        old = {name: getattr(self, name) for name in self.inners}
        new = {name: change(serde) for name, serde in old.items()}
        is_same = all(new[name] is old[name] for name in self.inners)
        return self if is_same else replace(self, **new)


@dataclass(frozen=True, slots=True)
class Around(Compound, Generic[T]):
    """Base class of serdes that add data around the bytes of an inner serde.

    Args:
        inner: the inner serde; None must be replaced before use.
    """

    inners: ClassVar[tuple[str, ...]] = ("inner",)

    inner: Serde[T] | None


# Name of the built-in serde for values of a type.
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
# Names of the built-in serdes that write a number of bytes.
_WRITES = {4: ("integer",), 8: ("long", "double")}


def _is_typed(kind: type) -> bool:
    """Return whether a class has fields, so that `json_of` supports it."""
    return hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__")


def refuse_value(name: str, value: object, reason: str = "") -> NoReturn:
    kind = type(value)
    other = _TAKES.get(kind)
    if value is None:
        advice = "None is null and is handled outside of serdes"
    elif other is not None and other != name:
        advice = f"pass value=serdes.{other} (key=serdes.{other} for keys)"
    elif _is_typed(kind):
        own = f"serdes.json_of({kind.__name__})"
        advice = (
            f"pass value={own} (key={own} for keys) to the operator that writes this topic or "
            "store, such as join() or group_by()"
        )
    else:
        advice = "convert it first, or make a serde with serdes.serde_from"
    because = f" ({reason})" if reason else ""
    raise SerdeError(
        f"serde {name!r} cannot encode a value of type {kind.__name__}{because}; {advice}"
    ) from None


_OF_THE_TOPIC = "pass the serde that the topic was written with"


def refuse_data(name: str, data: object, reason: str) -> NoReturn:
    if not isinstance(data, bytes):
        refuse_object(name, data)
    others = " or ".join(f"serdes.{other}" for other in _may_have_written(data) if other != name)
    advice = f"{_OF_THE_TOPIC}, such as value={others} (key= for keys)"
    refuse_bytes(name, data, reason, advice=advice)


def refuse_object(name: str, data: object) -> NoReturn:
    """Raise the error for data of another type than bytes."""
    raise SerdeError(
        f"serde {name!r} cannot decode an object of type {type(data).__name__}; pass bytes"
    ) from None


def refuse_bytes(name: str, data: bytes, reason: str, *, advice: str = _OF_THE_TOPIC) -> NoReturn:
    raise SerdeError(
        f"serde {name!r} cannot decode {len(data)} bytes ({reason}); {advice}"
    ) from None


def _may_have_written(data: bytes) -> tuple[str, ...]:
    try:
        is_text = data.decode().isprintable()
    except UnicodeDecodeError:
        is_text = False
    return ("string", "json", "bytes") if is_text else _WRITES.get(len(data), ("bytes",))


_encode = str.encode
_decode = bytes.decode


@dataclass(frozen=True, slots=True)
class StringSerde:
    """UTF-8, like Kafka's StringSerializer."""

    decoder: ClassVar[Callable[[bytes], str]] = staticmethod(bytes.decode)
    exact: ClassVar[frozenset[type]] = frozenset({str})

    name: str = "string"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: str, /) -> bytes:
        try:
            return _encode(value)
        except TypeError:
            refuse_value(self.name, value)
        except UnicodeEncodeError as error:
            refuse_value(self.name, value, f"{error.reason} at {error.start}")

    def deserialize(self, data: bytes, /) -> str:
        try:
            return _decode(data)
        except TypeError:
            refuse_data(self.name, data, "")
        except UnicodeDecodeError as error:
            refuse_data(self.name, data, f"{error.reason} at {error.start}, not UTF-8")


@dataclass(frozen=True, slots=True)
class BytesSerde:
    """Unchanged bytes, like Kafka's ByteArraySerializer."""

    exact: ClassVar[frozenset[type]] = frozenset({bytes})

    name: str = "bytes"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: bytes, /) -> bytes:
        """Return the value itself; a bytearray is rejected because it is mutable."""
        if type(value) is bytes:
            return value
        refuse_value(self.name, value)

    def deserialize(self, data: bytes, /) -> bytes:
        if type(data) is bytes:
            return data
        refuse_data(self.name, data, "")


@dataclass(frozen=True, slots=True)
class IntegerSerde:
    """Signed big-endian integer of a fixed width."""

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
        try:
            return self._unpack(data)[0]
        except (struct.error, TypeError):
            refuse_data(self.name, data, f"it takes {self.width}")


_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack


@dataclass(frozen=True, slots=True)
class DoubleSerde:
    """IEEE 754 double, big-endian, like Kafka's DoubleSerializer; accepts an int that is exactly
    representable.
    """

    exact: ClassVar[frozenset[type]] = frozenset({float})

    name: str = "double"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: float, /) -> bytes:
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
        try:
            value: float = _unpack_double(data)[0]
        except (struct.error, TypeError):
            refuse_data(self.name, data, "it takes 8")
        return value


_dumps = orjson.dumps
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""Range of integers that orjson encodes."""
_loads = orjson.loads
# Reject values that orjson would encode but decode as another type: otherwise the type of a stored
# value would change at the commit.
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
    """Return whether a value's bytes decode to an equal value, with the same types and key order.

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
        for key, item in value.items():
            if key.__class__ is not str or key < last:
                return False
            if item.__class__ not in _PLAIN and not is_plain(item):
                return False
            last = key
        return True
    if kind is list:
        return all(item.__class__ in _PLAIN or is_plain(item) for item in value)
    return False


@dataclass(frozen=True, slots=True)
class JsonSerde:
    """Compact JSON with sorted keys.

    Equal bytes mean equal documents: 1, 1.0 and true differ. It is not `canonical`, because it also
    accepts documents with whitespace or another order of keys.
    """

    decoder: ClassVar[Callable[[bytes], Any]] = staticmethod(orjson.loads)
    exact: ClassVar[frozenset[type]] = frozenset({int, str, bool})

    name: str = "json"
    immutable: bool = False
    canonical: bool = False

    def reserialize(self, value: Any, data: bytes, /) -> bytes:
        """Return the bytes of a value that was read from `data`; fast for plain strings."""
        if value.__class__ is str and data[0] == data[-1] == _QUOTE and _BACKSLASH not in data:
            return data
        return self.serialize(value)

    def normalise(self, value: Any, /) -> Any:
        """Return the value as its bytes decode; the value itself if it is plain."""
        try:
            plain = is_plain(value)
        except RecursionError:
            plain = False  # `serialize` raises the error for too deep nesting
        return value if plain else _loads(self.serialize(value))

    def serialize(self, value: Any, /) -> bytes:
        """Encode; None, NaN, infinities, ints beyond 64 bits and non-string keys are rejected."""
        if value.__class__ is int and _SMALLEST <= value <= _LARGEST:
            return b"%d" % value  # takes 50 % of the time; sums and counts are plain ints
        try:
            # Copy, because orjson's result keeps its whole initial buffer of 4 KiB allocated.
            data = b"%b" % _dumps(value, None, _JSON_OPTIONS)
        except TypeError as error:
            refuse_value(self.name, value, str(error))
        # orjson writes null for NaN and the infinities. `find` is faster than `in`, which first
        # checks whether its operand is an integer.
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
    """Serde of two user functions."""

    name: str
    _serialize: Callable[[T], bytes]
    _deserialize: Callable[[bytes], T]
    immutable: bool
    canonical: bool

    def serialize(self, value: T, /) -> bytes:
        """Encode with the user's function; its exception becomes the cause of a `SerdeError`."""
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
