"""Deduplication: only the first record of each id within an interval is forwarded.

An id is the record's key, or the key and the result of a function of the value, both as the bytes
of their serdes. The semantics are those of Kafka Streams (KIP-655):

- A record is forwarded, and its timestamp is stored, unless a forwarded record of the same id is at
  most `within` before or after it. A record that is not forwarded is not stored: it starts no
  interval.
- A record with a null key or a null id is always forwarded.
- A stored timestamp expires when stream time is more than `within` and `grace` past it. Up to
  `grace` behind stream time, all duplicates are found. A later record is compared with the
  timestamps that are still stored, so it is forwarded rather than lost (as in Kafka Streams).

Stream time is the largest timestamp of a record with an id. It is stored in the offset metadata, so
a restart does not change the result.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

from headrace.state.buffer import Buffer
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import SerdeError
from headrace.topology.operators.record_cache import Uncached
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import Compound, completed

AnySerde = Serde[Any]

SEEN = b"\x01"
"""Value of every row; only the key has information."""

_LENGTH = struct.Struct(">i")
_TIME_SUFFIX = struct.Struct(">qI")
"""A timestamp and a sequence number, as in the row keys of a window store."""
_TIME_MAX = 2**63 - 2


class Seen(NamedTuple):
    """A forwarded record: its key, the rest of its id, and its timestamp."""

    key: Any
    id: Any
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SeenSerde(Compound):
    """Serde of length of the key (4), key, rest of the id, time (8), zero (4), all big-endian.

    Args:
        left: the serde of keys; None must be filled in before use.
        right: the serde of the rest of ids; None must be filled in before use, unless `keys_only`.
        keys_only: whether the key is the whole id; then it is encoded without its length.

    >>> from headrace import serdes
    >>> SeenSerde(serdes.string, serdes.string).serialize(Seen("a", "b", 5)).hex(" ")
    '00 00 00 01 61 62 00 00 00 00 00 00 00 05 00 00 00 00'
    """

    inners: ClassVar[tuple[str, ...]] = ("left", "right")

    left: AnySerde | None
    right: AnySerde | None = None
    keys_only: bool = False
    name: str = field(default="seen", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def prefix(self, key: Any, identity: Any) -> bytes:
        """Return the common prefix of an id's rows; no other rows of the same length have it."""
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
        return self.prefix(value.key, value.id) + _TIME_SUFFIX.pack(value.timestamp_ms, 0)

    def deserialize(self, data: bytes, /) -> Seen:
        assert self.left is not None
        timestamp, _ = _TIME_SUFFIX.unpack_from(data, len(data) - _TIME_SUFFIX.size)
        id_bytes = data[: -_TIME_SUFFIX.size]
        if self.keys_only:
            return Seen(self.left.deserialize(id_bytes), None, timestamp)
        assert self.right is not None
        end = _LENGTH.size + _LENGTH.unpack_from(id_bytes)[0]
        key = self.left.deserialize(id_bytes[_LENGTH.size : end])
        return Seen(key, self.right.deserialize(id_bytes[end:]), timestamp)

    def with_inner_default(self, default: AnySerde, /) -> Self:
        right = None if self.keys_only else completed(self.right, default)
        return replace(self, left=completed(self.left, default), right=right)


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorSpec):
    """Spec of a deduplication.

    Args:
        store: the store of the forwarded records; its keys have a `SeenSerde`.
        within_ms: interval around a forwarded record in which duplicates are dropped, inclusive.
        grace_ms: how far behind stream time all duplicates are found.
        retention_ms: how long forwarded records are stored.
        identify: called as ``identify(value)``, returns the rest of the id; None uses only the key.
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
        kind = "deduplication by key" + ("" if self.identify is None else " and id")
        spans = {"within": self.within_ms, "grace": self.grace_ms}
        return RowKind(kind, spans, frozenset({"within"}))

    store_call: ClassVar[str] = 'deduplicate(store="...")'

    repartition_advice: ClassVar[str] = 'deduplicate(name="...")'

    def make(self, context: OperatorContext, /) -> _Deduplicate:
        return _Deduplicate(self, context)


class _Deduplicate(Uncached):
    """Hot path: a single range read of the store per record."""

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
        if not self._is_duplicate(prefix, timestamp):
            # A record that is older than the retention is not stored.
            self._buffer.put(prefix + _TIME_SUFFIX.pack(timestamp, 0), SEEN, timestamp)
            self._forward(key, value, None, timestamp, headers)

    def _expire(self) -> None:
        if self._time.value >= 0:
            self._buffer.expire(self._time.value - self._retention_ms)

    def _is_duplicate(self, prefix: bytes, timestamp: int) -> bool:
        buffer, within = self._buffer, self._within_ms
        start = max(timestamp - within, buffer.horizon)
        end = min(timestamp + within, _TIME_MAX) + 1
        if end <= start:
            return False
        low, high = prefix + _TIME_SUFFIX.pack(start, 0), prefix + _TIME_SUFFIX.pack(end, 0)
        # Longer ids may have rows between those of this one.
        return any(len(row) == len(low) for row, _, _ in Buffer.scan(buffer, low, high))
