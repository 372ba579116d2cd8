"""Changes of rows in a repartition topic, in Kafka Streams' format (KIP-904).

    old alone     old value   0
    new alone     new value   1
    both          length of the new value (varint)   new value   old value   2

The flags 3 to 5 correspond to 0 to 2, with an additional byte before the flag that is set if the
change is the latest of its key. They are read, and never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.topology.errors import SerdeError
from headrace.topology.serdes._serde import Around, Serde

_OLD, _NEW, _BOTH = 0, 1, 2
_WITH_LATEST = 3
"""Offset of the flags of changes with a byte that marks the latest change of a key."""


class ValueChange(NamedTuple):
    """New and previous value of a row in a group.

    Args:
        new: the value to add, or None.
        old: the value to subtract, or None.
    """

    new: Any
    old: Any


@dataclass(frozen=True, slots=True)
class ChangedSerde(Around[Any]):
    r"""Serde of changes.

    >>> from headrace import serdes
    >>> serde = ChangedSerde(serdes.string)
    >>> serde.serialize(ValueChange("new", "old")), serde.serialize(ValueChange(None, "old"))
    (b'\x06newold\x02', b'old\x00')
    >>> serde.deserialize(b"\x06newold\x02")
    ValueChange(new='new', old='old')
    """

    inner: Serde[Any] | None = None
    name: str = "changed"

    @property
    def immutable(self) -> bool:
        return self._values.immutable

    @property
    def canonical(self) -> bool:
        return self._values.canonical

    @property
    def _values(self) -> Serde[Any]:
        assert self.inner is not None, "the plan sets the serde of grouped values"
        return self.inner

    def serialize(self, value: ValueChange, /) -> bytes:
        """Encode a change; at least its new or its old value is not None."""
        encode = self._values.serialize
        if value.old is None:
            return encode(value.new) + b"\x01"
        if value.new is None:
            return encode(value.old) + b"\x00"
        new = encode(value.new)
        return _varint(len(new)) + new + encode(value.old) + b"\x02"

    def deserialize(self, data: bytes, /) -> ValueChange:
        decode = self._values.deserialize
        flag, end = (data[-1], len(data) - 1) if data else (-1, 0)
        if _WITH_LATEST <= flag <= _WITH_LATEST + _BOTH:
            flag, end = flag - _WITH_LATEST, end - 1
        if end < 0:
            raise _unreadable(data)
        if flag == _NEW:
            return ValueChange(decode(data[:end]), None)
        if flag == _OLD:
            return ValueChange(None, decode(data[:end]))
        if flag != _BOTH:
            raise _unreadable(data)
        length, start = _read_varint(data, end)
        if not 0 <= length <= end - start:
            raise _unreadable(data)
        middle = start + length
        return ValueChange(decode(data[start:middle]), decode(data[middle:end]))


def _varint(number: int) -> bytes:
    """Encode a non-negative number as Kafka's zigzag varint, lowest 7 bits first."""
    rest, data = number << 1, bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)


def _read_varint(data: bytes, end: int) -> tuple[int, int]:
    """Return the varint at the beginning of the data, and the position after it."""
    number = 0
    for position in range(min(5, end)):
        byte = data[position]
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return (-1 if number & 1 else number >> 1), position + 1
    raise _unreadable(data)


def _unreadable(data: bytes) -> SerdeError:
    return SerdeError(
        f"serde 'changed' cannot decode {len(data)} bytes that end with {data[-1:].hex() or None}; "
        "a newer version, or another program, writes to an internal topic of this application: "
        "stop it, and reset the application"
    )
