"""Serdes of the rows of stream-stream joins, in the format of Kafka Streams' changelogs.

    kept by a side     the key  its time (8)  a sequence number (4)        the value
    waiting            its time (8)  the side (1)  the key                 a list of values
    postponed          its time (8)  the key  a sequence number (4)        see `windows.buffered`

A record that waits for its first match is in a store that both sides share, by time, side and key.
The value is a list, because several records may have the same time, side and key (in Kafka Streams:
`TimestampedKeyAndJoinSide`, `LeftOrRightValue`). All numbers are big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from headrace.state.codec import KEPT, TIMESTAMP
from headrace.topology.serdes._list_of import ListSerde
from headrace.topology.serdes._serde import Around, BytesSerde, Compound, Serde
from headrace.topology.serdes.normalise import normalised

AnySerde = Serde[Any]

SEQUENCE = struct.Struct(">I")
WAITING_PREFIX_BYTES = TIMESTAMP.size + 1
"""Position of the key in a waiting row's key, after the time and the side."""

_LEFT = b"\x01"
_RIGHT = b"\x00"


class KeptKey(NamedTuple):
    """Row key of a record that a side of a join stores: key, time and sequence number."""

    key: Any
    timestamp_ms: int
    number: int


@dataclass(frozen=True, slots=True)
class KeptKeySerde(Around[Any]):
    """Serde of the key, the time (8) and the sequence number (4).

    >>> from headrace import serdes
    >>> KeptKeySerde(serdes.string).serialize(KeptKey("a", 5, 1)).hex(" ")
    '61 00 00 00 00 00 00 00 05 00 00 00 01'
    """

    name: str = field(default="kept_key", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def serialize(self, value: KeptKey, /) -> bytes:
        assert self.inner is not None
        return self.inner.serialize(value.key) + KEPT.pack(value.timestamp_ms, value.number)

    def deserialize(self, data: bytes, /) -> KeptKey:
        assert self.inner is not None
        timestamp, number = KEPT.unpack_from(data, len(data) - KEPT.size)
        return KeptKey(self.inner.deserialize(data[: -KEPT.size]), timestamp, number)


class PostponedKey(NamedTuple):
    """Row key of a record that waits to be joined with a table."""

    timestamp_ms: int
    key: Any
    number: int


@dataclass(frozen=True, slots=True)
class PostponedKeySerde(Around[Any]):
    """Serde of the time (8), the key and the sequence number (4).

    >>> from headrace import serdes
    >>> PostponedKeySerde(serdes.string).serialize(PostponedKey(5, "a", 1)).hex(" ")
    '00 00 00 00 00 00 00 05 61 00 00 00 01'
    """

    name: str = field(default="postponed_key", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def serialize(self, value: PostponedKey, /) -> bytes:
        assert self.inner is not None
        key = self.inner.serialize(value.key)
        return TIMESTAMP.pack(value.timestamp_ms) + key + SEQUENCE.pack(value.number)

    def deserialize(self, data: bytes, /) -> PostponedKey:
        assert self.inner is not None
        (timestamp,) = TIMESTAMP.unpack_from(data)
        (number,) = SEQUENCE.unpack_from(data, len(data) - SEQUENCE.size)
        key = self.inner.deserialize(data[TIMESTAMP.size : -SEQUENCE.size])
        return PostponedKey(timestamp, key, number)


class WaitingKey(NamedTuple):
    """Row key of records of a left or outer join that wait for their first match."""

    timestamp_ms: int
    is_left: bool
    key: Any


def waiting_row(timestamp: int, is_left: bool, key: bytes) -> bytes:
    return TIMESTAMP.pack(timestamp) + (_LEFT if is_left else _RIGHT) + key


@dataclass(frozen=True, slots=True)
class WaitingKeySerde(Around[Any]):
    """Serde of the time (8), the side (1: left, 0: right) and the key.

    >>> from headrace import serdes
    >>> WaitingKeySerde(serdes.string).serialize(WaitingKey(5, True, "a")).hex(" ")
    '00 00 00 00 00 00 00 05 01 61'
    """

    name: str = field(default="waiting_key", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def serialize(self, value: WaitingKey, /) -> bytes:
        assert self.inner is not None
        return waiting_row(value.timestamp_ms, value.is_left, self.inner.serialize(value.key))

    def deserialize(self, data: bytes, /) -> WaitingKey:
        assert self.inner is not None
        (timestamp,) = TIMESTAMP.unpack_from(data)
        return WaitingKey(
            timestamp, data[8:9] == _LEFT, self.inner.deserialize(data[WAITING_PREFIX_BYTES:])
        )


@dataclass(frozen=True, slots=True)
class WaitingValuesSerde(Compound):
    """Serde of a list of values, each prefixed with a byte for its side (1: left, 0: right).

    The values are pairs ``(is_left, value)``.

    Args:
        left: the serde of the left side's values; None must be replaced before use.
        right: the serde of the right side's values; None must be replaced before use.

    >>> from headrace import serdes
    >>> values = WaitingValuesSerde(serdes.string, serdes.integer)
    >>> values.deserialize(values.serialize([(True, "a"), (True, "b")]))
    [(True, 'a'), (True, 'b')]
    """

    inners: ClassVar[tuple[str, ...]] = ("left", "right")

    left: AnySerde | None
    right: AnySerde | None
    name: str = field(default="waiting_values", init=False)
    immutable: bool = field(init=False)
    canonical: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        both = (self.left, self.right)
        immutable = all(serde is not None and serde.immutable for serde in both)
        object.__setattr__(self, "immutable", immutable)

    def serialize(self, value: list[tuple[bool, Any]], /) -> bytes:
        assert self.left is not None
        assert self.right is not None
        left, right = self.left.serialize, self.right.serialize
        return _LIST.serialize(
            [_LEFT + left(v) if is_left else _RIGHT + right(v) for is_left, v in value]
        )

    def deserialize(self, data: bytes, /) -> list[tuple[bool, Any]]:
        assert self.left is not None
        assert self.right is not None
        left, right = self.left.deserialize, self.right.deserialize
        return [
            (True, left(item[1:])) if item[:1] == _LEFT else (False, right(item[1:]))
            for item in _LIST.deserialize(data)
        ]

    def normalise(self, value: list[tuple[bool, Any]], /) -> list[tuple[bool, Any]]:
        assert self.left is not None
        assert self.right is not None
        left, right = self.left, self.right
        return [(is_left, normalised(left if is_left else right, v)) for is_left, v in value]


_LIST: ListSerde[bytes] = ListSerde(BytesSerde("raw"), nulls=False, width=None)
