"""Letting the first record of each id go on, and none of those that are near it in time.

An id is the record's key, or the key and what a function makes of the value, both as the bytes of
their serdes. The rule is that of Kafka Streams (KIP-655):

- A record goes on, and its time is remembered, unless a record with its id that went on lies at
  most `within` before or after it. What does not go on is not remembered: it starts no interval.
- A record without a key, or without an id, always goes on.
- What went on is forgotten when stream time is more than `within` and `grace` past it. Up to
  `grace` behind stream time nothing is missed. A record that comes later is judged by what is still
  remembered, so it goes on rather than being lost (Kafka Streams does so too).

Stream time is the largest time of a record with an id, kept beside the input offsets, so a restart
judges as if there had been none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from headrace.state.buffer import Buffer
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import SerdeError
from headrace.topology.operators.last_changes import Uncached
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import completed, for_topic

AnySerde = Serde[Any]

SEEN = b"\x01"
"""The value of every row: that it is there says all."""

_LENGTH = struct.Struct(">i")
_PLACE = struct.Struct(">qI")
"""A time, and the number that stands behind it in each row of a store with windows."""
_TIME_MAX = 2**63 - 2


class Seen(NamedTuple):
    """A record that went on: its key, the rest of its id, and its time."""

    key: Any
    id: Any
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SeenSerde:
    """Length of the key (4), key, rest of the id, time (8), zero (4); numbers are big-endian.

    Args:
        left: the serde of keys; None is to be filled in before it is used.
        right: the serde of the rest of ids; None likewise. Without one, `keys_only`.
        keys_only: whether the key is all of the id; it is encoded without its length then.

    >>> from headrace import serdes
    >>> SeenSerde(serdes.string, serdes.string).serialize(Seen("a", "b", 5)).hex(" ")
    '00 00 00 01 61 62 00 00 00 00 00 00 00 05 00 00 00 00'
    """

    left: AnySerde | None
    right: AnySerde | None = None
    keys_only: bool = False
    name: str = field(default="seen", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def prefix(self, key: Any, identity: Any) -> bytes:
        """What the rows of an id begin with, and no others of that length."""
        assert self.left is not None
        argument = "key_serde"
        try:
            data = self.left.serialize(key)
            if self.keys_only:
                return data
            assert self.right is not None
            argument = "id_serde"
            return _LENGTH.pack(len(data)) + data + self.right.serialize(identity)
        except SerdeError as error:
            error.argument = argument
            raise

    def serialize(self, value: Seen, /) -> bytes:
        """Encode."""
        return self.prefix(value.key, value.id) + _PLACE.pack(value.timestamp_ms, 0)

    def deserialize(self, data: bytes, /) -> Seen:
        """Decode."""
        assert self.left is not None
        timestamp, _ = _PLACE.unpack_from(data, len(data) - _PLACE.size)
        both = data[: -_PLACE.size]
        if self.keys_only:
            return Seen(self.left.deserialize(both), None, timestamp)
        assert self.right is not None
        end = _LENGTH.size + _LENGTH.unpack_from(both)[0]
        key = self.left.deserialize(both[_LENGTH.size : end])
        return Seen(key, self.right.deserialize(both[end:]), timestamp)

    def with_inner_default(self, default: AnySerde, /) -> SeenSerde:
        """The same serde with `default` where none was given."""
        right = None if self.keys_only else completed(self.right, default)
        return replace(self, left=completed(self.left, default), right=right)

    def for_topic(self, topic: str, *, is_key: bool) -> SeenSerde:
        """The same serde with the inner ones for a topic."""
        both = (self.left, self.right)
        told = [s if s is None else for_topic(s, topic, is_key=is_key) for s in both]
        return self if told == list(both) else replace(self, left=told[0], right=told[1])


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorSpec):
    """Lets the first record of each id go on.

    Args:
        store: where it is kept which went on; its keys have a `SeenSerde`.
        within_ms: how far from one that went on others are left out, inclusive.
        grace_ms: how far behind stream time records may come and be judged with all that went on.
        retention_ms: how long it is known which went on.
        identify: called as ``identify(value)``, returns the rest of the id; None for the key alone.
        with_key: call ``identify(key, value)`` instead.
    """

    store: str
    within_ms: int
    grace_ms: int
    retention_ms: int
    identify: Callable[..., Any] | None
    with_key: bool

    @property
    def row_kind(self) -> RowKind:
        """With another interval, what was let go, or left out, cannot be judged any more."""
        kind = "deduplication by key" + ("" if self.identify is None else " and id")
        spans = {"within": self.within_ms, "grace": self.grace_ms}
        return RowKind(kind, spans, frozenset({"within"}))

    store_call: ClassVar[str] = 'deduplicate(store="...")'

    repartition_advice: ClassVar[str] = 'deduplicate(name="...")'

    def make(self, context: OperatorContext, /) -> _Deduplicating:
        """Make the operator of one task."""
        return _Deduplicating(self, context)


class _Deduplicating(Uncached):
    """Hot path: one look at the store a record."""

    __slots__ = (
        "_buffer",
        "_identify",
        "_prefix",
        "_retention_ms",
        "_task",
        "_time",
        "_with_key",
        "_within_ms",
    )

    def __init__(self, spec: Deduplicate, context: OperatorContext) -> None:
        super().__init__(context.forward)
        buffer = context.buffers[spec.store]
        assert isinstance(buffer, TimedBuffer), spec.store
        serde = context.serdes(spec.store)[0]
        assert isinstance(serde, SeenSerde), spec.store
        self._buffer = buffer
        self._prefix = serde.prefix
        self._identify = spec.identify
        self._with_key = spec.with_key
        self._within_ms = spec.within_ms
        self._retention_ms = spec.retention_ms
        self._task = context.task
        self._time = context.number("time", owner=spec.store)
        self._expire()

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        """Let a record go on, or not."""
        identity = key
        if key is not None and self._identify is not None:
            identity = self._identify(key, value) if self._with_key else self._identify(value)
        if key is None or identity is None:
            self._forward(key, value, None, timestamp, headers)
            return
        prefix = self._prefix(key, identity)
        if timestamp > self._time.value < self._task.watermark:
            self._time.value = min(timestamp, self._task.watermark)
            self._expire()
        if not self._is_near(prefix, timestamp):
            # One that is as old as what is forgotten is not remembered, either.
            self._buffer.put(prefix + _PLACE.pack(timestamp, 0), SEEN, timestamp)
            self._forward(key, value, None, timestamp, headers)

    def _expire(self) -> None:
        if self._time.value >= 0:
            self._buffer.expire(self._time.value - self._retention_ms)

    def _is_near(self, prefix: bytes, timestamp: int) -> bool:
        """Whether one that went on lies near; what is forgotten is no more among the rows."""
        buffer, within = self._buffer, self._within_ms
        start = max(timestamp - within, buffer.horizon)
        end = min(timestamp + within, _TIME_MAX) + 1
        if end <= start:
            return False
        low, high = prefix + _PLACE.pack(start, 0), prefix + _PLACE.pack(end, 0)
        # Longer ids may have rows between those of this one.
        return any(len(row) == len(low) for row, _, _ in Buffer.scan(buffer, low, high))
