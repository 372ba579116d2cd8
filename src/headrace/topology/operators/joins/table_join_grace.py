"""Join of a stream with a versioned table, with a grace period for late rows.

A record waits until stream time is past its timestamp by the grace period. Then it is joined with
the row that was valid at its timestamp. A record that arrives later than that is joined
immediately, with the rows that are known (Kafka Streams: `KStreamKTableJoinProcessor`,
`RocksDBTimeOrderedKeyValueBuffer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.state.codec import TIMESTAMP
from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import EarlierRecordError
from headrace.topology.operators.record_cache import Uncached
from headrace.topology.operators.windows.buffered import Buffered
from headrace.topology.operators.windows.emission import NEVER
from headrace.topology.serdes.join_serdes import PostponedKey

_SEQUENCE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PostponedTableJoin(OperatorSpec):
    """Spec of such a join.

    Args:
        table: the name of the node of the versioned table.
        joiner: called as ``joiner(value, row)``.
        with_key: call ``joiner(key, value, row)`` instead.
        left: whether records without a row are joined, too, with None.
        grace_ms: how long records wait.
    """

    table: str
    joiner: Callable[..., Any]
    with_key: bool
    left: bool
    store: str
    grace_ms: int

    repartition_advice: ClassVar[str] = 'join(name="...")'

    @property
    def row_kind(self) -> RowKind:
        return RowKind("join with a table", {"grace": self.grace_ms})

    store_call: ClassVar[str] = repartition_advice

    def make(self, context: OperatorContext, /) -> _TableJoinWithGrace:
        return _TableJoinWithGrace(self, context)


class _TableJoinWithGrace(Uncached):
    delays_results: ClassVar[bool] = True

    __slots__ = (
        "_buffer",
        "_decode",
        "_dropped",
        "_earliest",
        "_encode",
        "_failed",
        "_get_as_of",
        "_grace_ms",
        "_joiner",
        "_left",
        "_sequence",
        "_task",
        "_time",
        "_with_key",
    )

    def __init__(self, spec: PostponedTableJoin, context: OperatorContext) -> None:
        rows: Any = context.view(spec.table)
        self._get_as_of: Callable[[Any, int], tuple[Any, int]] = rows.get_as_of
        self._buffer = context.buffers[spec.store]
        serde = context.serdes(spec.store)[0]
        self._encode = serde.serialize
        self._decode = serde.deserialize
        self._joiner = spec.joiner
        self._with_key = spec.with_key
        self._left = spec.left
        self._grace_ms = spec.grace_ms
        self._failed = context.failed
        super().__init__(context.forward)
        self._dropped = context.dropped
        self._task = context.task
        self._time = context.number("time")
        self._sequence = context.number("sequence")
        self._earliest = 0
        """Lower bound of the timestamps of waiting records."""

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        if value is None or (key is None and not self._left):
            # A record that is dropped does not advance time (Kafka Streams: `maybeDropRecord`).
            self._dropped("null value" if value is None else "null key")
            return
        now = max(self._time.value, min(timestamp, self._task.watermark))
        self._time.value = now
        if key is None:
            self._join(None, value, None, timestamp, headers)
        elif timestamp < now - self._grace_ms:
            self._join(key, value, self._get_as_of(key, timestamp)[0], timestamp, headers)
        else:
            self._add_waiting(key, value, timestamp, headers)
        if now - self._grace_ms >= self._earliest:
            self._join_until(now - self._grace_ms)

    def is_due(self, time: int, /) -> bool:
        return time > self._time.value and time - self._grace_ms >= self._earliest

    def earliest_waiting(self) -> int | None:
        first = next(iter(self._buffer.scan()), None)
        return None if first is None else TIMESTAMP.unpack_from(first[0])[0]

    def advance(self, time: int, /) -> None:
        if time > self._time.value:
            self._time.value = time
            if time - self._grace_ms >= self._earliest:
                self._join_until(time - self._grace_ms)

    def _add_waiting(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        last = self._sequence.value
        self._sequence.value = number = 0 if last >= _SEQUENCE_MAX else last + 1
        row = self._encode(PostponedKey(timestamp, key, number))
        self._buffer.put(row, Buffered(value, None, timestamp, timestamp, headers), timestamp)
        self._earliest = min(self._earliest, timestamp)

    def _join_until(self, time: int) -> None:
        """Join the records up to this timestamp, by timestamp, then key, then arrival."""
        end = TIMESTAMP.pack(time + 1)
        for row, waiting, timestamp in self._buffer.scan(TIMESTAMP.pack(self._earliest), end):
            key = self._decode(row).key
            self._buffer.put(row, None, timestamp)
            table_row = self._get_as_of(key, timestamp)[0]
            if table_row is None and not self._left:
                continue
            try:
                joined = self._joined(key, waiting.value, table_row)
            except Exception as error:
                # The record that advanced stream time must not be skipped.
                earlier = EarlierRecordError(error, timestamp)
                self._failed(earlier, key, (waiting.value, table_row), timestamp, waiting.headers)
            else:
                self._forward(key, joined, None, timestamp, waiting.headers)
        following = self._buffer.scan(end)
        self._earliest = next((TIMESTAMP.unpack_from(row)[0] for row, _, _ in following), NEVER)

    def _join(self, key: Any, value: Any, row: Any, timestamp: int, headers: Headers) -> None:
        if row is not None or self._left:
            self._forward(key, self._joined(key, value, row), None, timestamp, headers)

    def _joined(self, key: Any, value: Any, row: Any) -> Any:
        return self._joiner(key, value, row) if self._with_key else self._joiner(value, row)
