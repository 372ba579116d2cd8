"""The serdes that come along, in Kafka's byte forms, and `serde_from` for one's own.

>>> from topology import serdes
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
topology.errors.SerdeError: serde 'string' cannot encode a value of type int; \
pass value=serdes.long (key=serdes.long for keys)
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar

from topology._serde import (
    BytesSerde,
    DoubleSerde,
    FunctionSerde,
    IntegerSerde,
    JsonSerde,
    Serde,
    StringSerde,
)

__all__ = [
    "Serde",
    "bytes",
    "double",
    "integer",
    "json",
    "long",
    "serde_from",
    "string",
]

T = TypeVar("T")

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


def serde_from(
    *,
    serialize: Callable[[T], builtins.bytes],
    deserialize: Callable[[builtins.bytes], T],
    name: str,
    immutable: bool = False,
    canonical: bool = False,
) -> Serde[T]:
    """Make a serde of two functions.

    Args:
        serialize: Encodes a value; never called with None.
        deserialize: Decodes what `serialize` wrote, to an equal value of the same type.
        name: What errors call the serde.
        immutable: Promises that values cannot be mutated, so that stores need no private copies.
        canonical: Promises ``serialize(deserialize(b)) == b`` for every ``b`` that is accepted.

    Returns:
        The serde. Exceptions of the functions are raised as `SerdeError` from the original.

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
    return FunctionSerde(name, serialize, deserialize, immutable, canonical)
