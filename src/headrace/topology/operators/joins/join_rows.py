"""What each side of a join of two streams keeps: its records, for as long as they may match.

The store holds every record, equal ones included: a sequence number stands behind key and time. The
records of one key lie next to each other, by time, then as they came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from headrace.state.buffer import ATOMS
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Number, OperatorContext, TaskFacts
from headrace.topology.operators.windows.recent_rows import RecentRows
from headrace.topology.serdes.join_serdes import KEPT, SEQUENCE, KeptKeySerde

_SEQUENCE_MAX = 2**31 - 1


class KeyEncoder:
    """Encodes a key once for all steps of a join that one record goes through.

    Hot path: `data` is what is asked for if `key` is the key, which spares the call.
    """

    __slots__ = ("_serialize", "data", "key")

    def __init__(self, serialize: Callable[[Any], bytes]) -> None:
        self._serialize = serialize
        self.key: Any = self
        self.data = b""

    def __call__(self, key: Any) -> bytes:
        """The bytes of a key."""
        if key is self.key:
            return self.data
        data = self._serialize(key)
        # Another object could be changed in place, and come again as another key.
        if key.__class__ in ATOMS:
            self.key, self.data = key, data
        return data


class SideRows:
    """The records of one side of a join, within one task.

    They are kept by the stream time of this side alone, as Kafka Streams keeps them: a late record
    is joined for as long as the other side has kept what it matches. A record is kept up to and
    with the last moment at which one in time may match it, a millisecond longer than there.

    Args:
        key: the serde of its rows' keys.
        retention_ms: how long a record is kept.
        sequence: the number of the last record.
    """

    __slots__ = (
        "_buffer",
        "_recent",
        "_retention_ms",
        "_sequence",
        "_task",
        "_time",
        "encode",
        "is_told",
    )

    def __init__(
        self,
        buffer: TimedBuffer,
        encode: KeyEncoder,
        retention_ms: int,
        time: Number,
        sequence: Number,
        task: TaskFacts | None = None,
    ) -> None:
        self._buffer = buffer
        self._recent: RecentRows | None = None
        self.encode = encode
        self._retention_ms = retention_ms
        self._time = time
        self._sequence = sequence
        self._task = task or TaskFacts()
        self.is_told = False
        """Whether the record under way got its null result and is to match nothing any more."""
        if time.value >= 0:
            buffer.expire(time.value - retention_ms)

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
                context.task,
            )
        return cast("SideRows", shared[known])

    def add(self, key: Any, value: Any, timestamp: int) -> bool:
        """Keep a record; returns whether it came in time to be kept."""
        if timestamp > self._time.value:
            self.advance(min(timestamp, self._task.watermark))
        elif timestamp < self._buffer.horizon:
            return False
        encode, sequence = self.encode, self._sequence
        data = encode.data if key is encode.key else encode(key)
        if 0 <= sequence.value < _SEQUENCE_MAX:
            number = sequence.value = sequence.value + 1
        else:
            number = self._next_sequence()
        recent = self._recent or self._rows_in_memory()
        held = self._buffer.put_unexpired(data + KEPT.pack(timestamp, number), value, timestamp)
        recent.add(data, timestamp, number, timestamp, held)
        return True

    def advance(self, time: int) -> None:
        """Advance the stream time of this side."""
        if time > self._time.value:
            self._time.value = time
            self._buffer.expire(time - self._retention_ms)

    def is_past(self, timestamp: int) -> bool:
        """Whether a record of this time comes too late to be kept."""
        return timestamp < self._buffer.horizon

    def between(self, key: Any, start_ms: int, end_ms: int) -> list[tuple[int, Any]]:
        """Times and values of a key's records, both bounds included, by time, then as they came."""
        buffer = self._buffer
        if start_ms < buffer.horizon:
            start_ms = buffer.horizon
        if end_ms < start_ms:
            return []
        encode = self.encode
        data = encode.data if key is encode.key else encode(key)
        rows = (self._recent or self._rows_in_memory()).between(data, start_ms, end_ms)
        if not rows:
            return []
        if buffer.holds_objects:
            return [(timestamp, value) for _, timestamp, value in rows]
        opened = buffer.opened
        return [(timestamp, opened(value)) for _, timestamp, value in rows]

    def remove_last(self, key_bytes: bytes, timestamp: int, count: int) -> None:
        """Let go of the last records of a key and time."""
        if timestamp < self._buffer.horizon:
            return
        recent = self._recent or self._rows_in_memory()
        for row in recent.remove_last(key_bytes, timestamp, count):
            self._buffer.put_unexpired(row, None, timestamp)

    def _rows_in_memory(self) -> RecentRows:
        # Not before the first record: until then the store may be under restore.
        self._recent = RecentRows(self._buffer)
        return self._recent

    def _next_sequence(self) -> int:
        last = self._sequence.value
        if last < 0:
            # A store that another program filled: no row of it may be written over.
            rows = self._buffer.scan()
            last = max(
                (SEQUENCE.unpack_from(row, len(row) - SEQUENCE.size)[0] for row, _, _ in rows),
                default=-1,
            )
        self._sequence.value = following = 0 if last >= _SEQUENCE_MAX else last + 1
        return following


def key_encoder(context: OperatorContext, store: str) -> KeyEncoder:
    """What encodes the keys of a side's store."""
    serde = context.serdes(store)[0]
    assert isinstance(serde, KeptKeySerde), store
    assert serde.inner is not None, store
    serialize = serde.inner.serialize
    known = ("join key", serialize)
    if known not in context.shared:
        context.shared[known] = KeyEncoder(serialize)
    return cast("KeyEncoder", context.shared[known])
