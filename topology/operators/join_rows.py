"""What a join of two streams keeps: each side's records for as long as they may match, and those
that wait for their first match.

A side's store holds every record, equal ones included: a sequence number stands behind key and
time. The records of one key lie next to each other, by time, then as they came.

The records that wait lie in one store for both sides, by time, side and key, and are a list where
several have the same of all three (Kafka Streams: `TimestampedKeyAndJoinSide`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from state.buffer import ATOMS, Buffer
from state.codec import TIMESTAMP
from state.timed import TimedBuffer
from topology._list_of import ListSerde
from topology._serde import Serde, for_topic
from topology.operators.context import Number, OperatorContext
from topology.windows_serde import WindowStoreSerde

__all__ = ["KeyEncoder", "SideRows", "WaitingKey", "WaitingKeySerde", "WaitingValuesSerde"]

AnySerde = Serde[Any]

_SEQUENCE = struct.Struct(">I")
_FIRST = bytes(_SEQUENCE.size)
_SUFFIX_BYTES = TIMESTAMP.size + _SEQUENCE.size
_SEQUENCE_MAX = 2**31 - 1
_TIME_MAX = 2**63 - 2
_LEFT = b"\x01"
_RIGHT = b"\x00"

pack_time = TIMESTAMP.pack


class KeyEncoder:
    """Encodes a key once for all steps of a join that one record goes through."""

    __slots__ = ("_data", "_key", "_serialize")

    def __init__(self, serialize: Callable[[Any], bytes]) -> None:
        self._serialize = serialize
        self._key: Any = None
        self._data = b""

    def __call__(self, key: Any) -> bytes:
        """The bytes of a key."""
        if key is self._key:
            return self._data
        data = self._serialize(key)
        # Another object could be changed in place, and come again as another key.
        if key.__class__ in ATOMS:
            self._key, self._data = key, data
        return data


class SideRows:
    """The records of one side of a join, within one task.

    They are kept by the stream time of this side alone, as Kafka Streams keeps them: a late record
    is joined for as long as the other side has kept what it matches.

    Args:
        buffer: the store.
        key: the serde of its rows' keys.
        retention_ms: how long a record is kept.
        time: the side's stream time.
        sequence: the number of the last record.
    """

    __slots__ = (
        "_buffer",
        "_encode",
        "_retention_ms",
        "_sequence",
        "_time",
        "is_told",
    )

    def __init__(
        self,
        buffer: TimedBuffer,
        encode: KeyEncoder,
        retention_ms: int,
        time: Number,
        sequence: Number,
    ) -> None:
        self._buffer = buffer
        self._encode = encode
        self._retention_ms = retention_ms
        self._time = time
        self._sequence = sequence
        self.is_told = False
        """Whether the record under way got its null result and is to match nothing any more."""
        if time.value >= 0:
            buffer.expire(time.value - retention_ms + 1)

    @staticmethod
    def of(context: OperatorContext, store: str, retention_ms: int) -> SideRows:
        """The rows of a store; the same object for all steps of a task."""
        shared = context.shared
        known = ("join side", store)
        if known not in shared:
            buffer = context.buffers[store]
            assert isinstance(buffer, TimedBuffer), store
            shared[known] = SideRows(
                buffer,
                key_encoder(context, store),
                retention_ms,
                context.number("time", owner=store),
                context.number("sequence", owner=store),
            )
        return cast("SideRows", shared[known])

    def add(self, key: Any, value: Any, timestamp: int) -> bool:
        """Keep a record; returns whether it came in time to be kept."""
        if timestamp > self._time.value:
            self._time.value = timestamp
            self._buffer.expire(timestamp - self._retention_ms + 1)
        elif timestamp < self._buffer.horizon:
            return False
        row_key = self._encode(key) + pack_time(timestamp) + _SEQUENCE.pack(self._next_sequence())
        self._buffer.put(row_key, value, timestamp)
        return True

    def between(self, key: Any, start_ms: int, end_ms: int) -> list[tuple[int, Any]]:
        """Times and values of a key's records, both bounds included, by time, then as they came."""
        buffer = self._buffer
        start_ms = max(start_ms, buffer.horizon)
        if end_ms < start_ms:
            return []
        prefix = self._encode(key)
        size = len(prefix) + _SUFFIX_BYTES
        low = prefix + pack_time(start_ms) + _FIRST
        high = prefix + pack_time(min(end_ms, _TIME_MAX) + 1) + _FIRST
        # Nothing in this range has expired. A longer key may have rows between those of this one.
        rows = Buffer.scan(buffer, low, high)
        return [(timestamp, value) for row, value, timestamp in rows if len(row) == size]

    def remove_last(self, key_bytes: bytes, timestamp: int, count: int) -> None:
        """Let go of the last records of a key and time."""
        low = key_bytes + pack_time(timestamp) + _FIRST
        high = key_bytes + pack_time(timestamp + 1) + _FIRST
        rows = [row for row, _, _ in self._buffer.scan(low, high) if len(row) == len(low)]
        for row in rows[-count:]:
            self._buffer.put(row, None, timestamp)

    def _next_sequence(self) -> int:
        last = self._sequence.value
        if last < 0:
            # A store that another program filled: no row of it may be written over.
            rows = self._buffer.scan()
            last = max((_SEQUENCE.unpack(row[-4:])[0] for row, _, _ in rows), default=-1)
        self._sequence.value = following = 0 if last >= _SEQUENCE_MAX else last + 1
        return following


def key_encoder(context: OperatorContext, store: str) -> KeyEncoder:
    """What encodes the keys of a side's store."""
    serde = context.serdes(store)[0]
    assert isinstance(serde, WindowStoreSerde), store
    assert serde.windowed.inner is not None, store
    serialize = serde.windowed.inner.serialize
    known = ("join key", serialize)
    if known not in context.shared:
        context.shared[known] = KeyEncoder(serialize)
    return cast("KeyEncoder", context.shared[known])


class WaitingKey(NamedTuple):
    """Where a record waits for its first match: the key of a row of a left or outer join."""

    timestamp_ms: int
    is_left: bool
    key: Any


def waiting_row(timestamp: int, is_left: bool, key: bytes) -> bytes:
    """The key of the row of records that wait."""
    return pack_time(timestamp) + (_LEFT if is_left else _RIGHT) + key


@dataclass(frozen=True, slots=True)
class WaitingKeySerde:
    """The time (8), the side (1: left, 0: right), the key.

    Args:
        inner: the serde of the key itself; None is to be filled in before it is used.

    >>> from topology import serdes
    >>> WaitingKeySerde(serdes.string).serialize(WaitingKey(5, True, "a")).hex(" ")
    '00 00 00 00 00 00 00 05 01 61'
    """

    inner: AnySerde | None
    name: str = field(default="waiting_key", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def serialize(self, value: WaitingKey, /) -> bytes:
        """Encode."""
        assert self.inner is not None
        return waiting_row(value.timestamp_ms, value.is_left, self.inner.serialize(value.key))

    def deserialize(self, data: bytes, /) -> WaitingKey:
        """Decode."""
        assert self.inner is not None
        (timestamp,) = TIMESTAMP.unpack_from(data)
        return WaitingKey(timestamp, data[8:9] == _LEFT, self.inner.deserialize(data[9:]))

    def with_inner_default(self, default: AnySerde, /) -> WaitingKeySerde:
        """The same serde with `default` for the key, where none was given."""
        return replace(self, inner=default) if self.inner is None else self

    def for_topic(self, topic: str, *, is_key: bool) -> WaitingKeySerde:
        """The same serde with the inner one for a topic."""
        if self.inner is None:
            return self
        return replace(self, inner=for_topic(self.inner, topic, is_key=is_key))


@dataclass(frozen=True, slots=True)
class WaitingValuesSerde:
    """A list of values, a byte that says the side (1: left, 0: right) in front of each.

    The values are pairs ``(is_left, value)``.

    Args:
        left: the serde of the left side's values; None is to be filled in before it is used.
        right: the same of the right side's.

    >>> from topology import serdes
    >>> values = WaitingValuesSerde(serdes.string, serdes.integer)
    >>> values.deserialize(values.serialize([(True, "a"), (True, "b")]))
    [(True, 'a'), (True, 'b')]
    """

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
        """Encode."""
        assert self.left is not None
        assert self.right is not None
        left, right = self.left.serialize, self.right.serialize
        return _LIST.serialize(
            [_LEFT + left(v) if is_left else _RIGHT + right(v) for is_left, v in value]
        )

    def deserialize(self, data: bytes, /) -> list[tuple[bool, Any]]:
        """Decode."""
        assert self.left is not None
        assert self.right is not None
        left, right = self.left.deserialize, self.right.deserialize
        return [
            (True, left(item[1:])) if item[:1] == _LEFT else (False, right(item[1:]))
            for item in _LIST.deserialize(data)
        ]

    def with_inner_default(self, default: AnySerde, /) -> WaitingValuesSerde:
        """The same serde with `default` for the sides that were given none."""
        return WaitingValuesSerde(self.left or default, self.right or default)

    def for_topic(self, topic: str, *, is_key: bool) -> WaitingValuesSerde:
        """The same serde with the inner ones for a topic."""
        if self.left is None or self.right is None:
            return self
        return WaitingValuesSerde(
            for_topic(self.left, topic, is_key=is_key), for_topic(self.right, topic, is_key=is_key)
        )


class _Raw:
    """Bytes as they are."""

    name = "raw"
    immutable = True
    canonical = True

    def serialize(self, value: bytes, /) -> bytes:
        return value

    def deserialize(self, data: bytes, /) -> bytes:
        return data


_LIST: ListSerde[bytes] = ListSerde(_Raw(), nulls=False, width=None)
