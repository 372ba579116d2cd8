"""Built-in serdes in Kafka's byte formats, and `serde_from` for custom serdes.

Examples:
    >>> from headrace import serdes
    >>> serdes.string.serialize("héron")
    b'h\\xc3\\xa9ron'
    >>> serdes.integer.serialize(-2)
    b'\\xff\\xff\\xff\\xfe'
    >>> serdes.long.deserialize(b"\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x00")
    256
    >>> serdes.json.serialize({"b": [1, 1.0, True], "a": None})
    b'{"a":null,"b":[1,1.0,true]}'
    >>> serdes.string.serialize(5)
    Traceback (most recent call last):
    ...
    headrace.topology.errors.SerdeError: serde 'string' cannot encode a value of type int; \
pass value=serdes.long (key=serdes.long for keys)
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headrace.topology.arguments import (
    refuse_other_than_function,
    refuse_other_than_serde,
)
from headrace.topology.errors import TopologyError, type_of
from headrace.topology.java_names import serde_hint
from headrace.topology.serdes._json_of import json_of_serde
from headrace.topology.serdes._list_of import ListSerde, item_width
from headrace.topology.serdes._serde import (
    BytesSerde,
    DoubleSerde,
    FunctionSerde,
    IntegerSerde,
    JsonSerde,
    Serde,
    StringSerde,
)
from headrace.topology.serdes.windows_serde import session_windowed, time_windowed

__all__ = [
    "Serde",
    "bytes",
    "double",
    "integer",
    "json",
    "json_of",
    "list_of",
    "long",
    "serde_from",
    "session_windowed",
    "string",
    "time_windowed",
]

T = TypeVar("T")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        hint = serde_hint(name)
        raise AttributeError(f"module 'headrace.serdes' has no attribute {name!r}{hint}", name=name)


string: Serde[str] = StringSerde()
"""UTF-8, strict."""

bytes: Serde[builtins.bytes] = BytesSerde()  # noqa: A001 - the name that users look for
"""Bytes as they are."""

integer: Serde[int] = IntegerSerde("integer", 4)
"""Java's Integer: 4 bytes, big-endian."""

long: Serde[int] = IntegerSerde("long", 8)
"""Java's Long: 8 bytes, big-endian."""

double: Serde[float] = DoubleSerde()
"""Java's Double: 8 bytes, big-endian."""

json: Serde[Any] = JsonSerde()
"""JSON, written compactly with sorted keys. Tuples read back as lists."""


def json_of(cls: type[T], /, *, name: str | None = None, checked: bool = True) -> Serde[T]:
    """Create a serde of JSON documents that are decoded to objects of a class.

    Accepts dataclasses, typed dicts, named tuples and `msgspec.Struct`s, nested, and lists, dicts,
    tuples, sets and unions of them. ``datetime``, ``date``, ``Decimal``, ``UUID`` and ``Enum`` are
    strings. A missing field has its default; fields that the class does not have are ignored.

    Equal objects have equal bytes, so it can be used for keys: fields are sorted, and an int in a
    float field is written as the float. Only values that are equal in Python but decode differently
    are two keys: 0.0 and -0.0, decimals with other digits, one time in two zones.

    Args:
        cls: the class, or a type such as ``list[Order]``. Values are immutable, so that stores
            need no private copies, if the class and the types of its fields are frozen.
        name: the serde's name in errors; None uses ``json_of(Order)``.
        checked: whether to decode the result of encoding, and reject values that would not decode
            to an equal object (a str in an int field, NaN, a tuple in a list field). If False,
            such values are written, and fail or differ when they are read.

    Returns:
        The serde. Its errors contain the field, never the value.

    Raises:
        TopologyError: JSON cannot represent a field's type.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Order:
        ...     id: int
        ...     amount: float
        ...     note: str | None = None
        >>> order = json_of(Order)
        >>> order.serialize(Order(7, 2))
        b'{"amount":2.0,"id":7,"note":null}'
        >>> order.deserialize(b'{"id": 7, "amount": 2}')
        Order(id=7, amount=2.0, note=None)
        >>> order.deserialize(b'{"id": "7", "amount": 2}')
        Traceback (most recent call last):
        ...
        headrace.topology.errors.SerdeError: serde 'json_of(Order)' cannot decode 24 bytes \
(Expected `int`, got `str` at `$.id`); correct the data, let the class accept it (a default for \
a field that may be missing, `| None` for null), or pass the serde that the topic was written with
    """
    return json_of_serde(cls, name, checked)


@overload
def list_of(
    inner: Serde[T], /, *, nulls: Literal[False] = False, item_bytes: int | None = None
) -> Serde[list[T]]: ...
@overload
def list_of(
    inner: Serde[T], /, *, nulls: Literal[True], item_bytes: int | None = None
) -> Serde[list[T | None]]: ...


def list_of(
    inner: Serde[Any], /, *, nulls: bool = False, item_bytes: int | None = None
) -> Serde[Any]:
    """Create a serde of lists, in the format of Kafka's ListSerializer.

    Args:
        inner: the serde of the items.
        nulls: whether items may be None. In Kafka they always may; here the type of the serde
            differs.
        item_bytes: size of each item, for a custom serde whose Java counterpart Kafka writes
            without lengths: 2 for Short, 4 for Float, 36 for UUID. The sizes of `integer`, `long`
            and `double` are known.

    Returns:
        The serde. It fails on the first item that `inner` rejects.

    Examples:
        >>> list_of(string).serialize(["a", "bc"]).hex(" ")
        '01 00 00 00 02 00 00 00 01 61 00 00 00 02 62 63'
        >>> list_of(integer, nulls=True).serialize([None, 5]).hex(" ")
        '00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 05'
    """
    refuse_other_than_serde(inner, "inner", "list_of")
    return ListSerde(inner, nulls, item_bytes or item_width(inner))


def serde_from(
    *,
    serialize: Callable[[T], builtins.bytes],
    deserialize: Callable[[builtins.bytes], T],
    name: str,
    immutable: bool = False,
    canonical: bool = False,
) -> Serde[T]:
    """Create a serde from two functions.

    Args:
        serialize: Encodes a value; never called with None.
        deserialize: Decodes the result of `serialize`, to a value that is written and read
            unchanged. Stores hold that value, see docs/serdes.md.
        name: The serde's name in errors.
        immutable: Promises that values cannot be mutated, so that stores need no private copies.
        canonical: Promises ``serialize(deserialize(b)) == b`` for every ``b`` that is accepted.

    Returns:
        The serde. Exceptions of the functions become the cause of a `SerdeError`.

    Raises:
        TopologyError: an argument is not a function of one value, or is a coroutine function.

    Examples:
        >>> from datetime import date
        >>> day = serde_from(
        ...     name="day",
        ...     serialize=lambda value: value.isoformat().encode(),
        ...     deserialize=lambda data: date.fromisoformat(data.decode()),
        ...     immutable=True,
        ... )
        >>> day.deserialize(day.serialize(date(2024, 2, 29)))
        datetime.date(2024, 2, 29)
    """
    if not isinstance(name, str):
        raise TopologyError(f"serde_from() takes a str as name=, not {type_of(name)}")
    for argument, function, called in (
        ("serialize", serialize, "serialize(value)"),
        ("deserialize", deserialize, "deserialize(data)"),
    ):
        refuse_other_than_function(function, "serde_from", argument, 1, called)
    return FunctionSerde(name, serialize, deserialize, immutable, canonical)
