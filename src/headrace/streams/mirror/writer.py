"""Producer of mirrored records that reports their target offsets.

Hot path: `send_all` runs for each batch of mirrored records.

The records that a transaction writes to a partition are consecutive, so the offsets of the first
and the last record determine all others, and reveal a second producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from headrace.streams.errors import OutcomeUnknownError, record_size
from headrace.streams.kafka.headers import are_plain, produce_any
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.reactions import Reaction, reaction_to
from headrace.streams.kafka.transactional_producer import TransactionalProducer

_NEAR = 0.9
"""Fraction of a topic's size limit above which the delivery of each record is reported."""
_FLUSH_S = 0.2
_OVERHEAD = 70
"""Minimum overhead of a batch with a single record, in bytes."""
_VOID = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._DESTROY})


class RejectedRecord(NamedTuple):
    """Record that the target rejects."""

    tp: TopicPartition
    error: KafkaError
    source_offset: int | None
    size: int | None


class MirrorProducer(TransactionalProducer):
    """Producer of mirrored records; see `TransactionalProducer` for the other arguments.

    Args:
        limits: max.message.bytes of topics.
    """

    def __init__(self, config: Mapping[str, Any], *, limits: Mapping[str, int], **more: Any):
        super().__init__(config, **more)
        self._limits = limits
        self._spans: dict[TopicPartition, tuple[int, int]] = {}
        self._unreported: set[TopicPartition] = set()
        self.refused: RejectedRecord | None = None

    def begin(self) -> None:
        self._spans.clear()
        self._unreported.clear()
        self.refused = None
        super().begin()

    def send_all(self, tp: TopicPartition, batch: Sequence[Any]) -> int:
        """Write records unchanged; return the total size of keys and values, in bytes."""
        topic, partition = tp
        near = _NEAR * self._limits.get(topic, 1_000_000) - _OVERHEAD
        produce: Callable[..., None] = self._client.produce
        reported = partial(self._span_reported, self._number, tp)
        first = None if tp in self._unreported else batch[0]
        last = batch[-1]
        self._unreported.add(tp)
        total = 0
        columns: Iterable[Any] = zip(
            batch,
            map(Message.key, batch),
            map(Message.value, batch),
            map(Message.timestamp, batch),
            map(Message.headers, batch),
            strict=True,
        )
        for message, key, value, (_, time_ms), headers in columns:
            size = len(key or b"") + len(value or b"")
            total += size
            report = reported if message is first or message is last else None
            send = produce
            if headers or size > near:
                size = record_size(key, value, headers)
                if headers and not are_plain(headers):
                    send = partial(_produce_any, produce)
                if size > near:
                    report = partial(self._span_reported, self._number, tp,
                                     source=message.offset(), size=size)  # fmt: skip
            while True:
                try:
                    send(topic, value, key, partition, report, None, time_ms or 1, headers)
                except BufferError:
                    self._wait_for_space()
                    continue
                except KafkaException as error:
                    cause: KafkaError = error.args[0]
                    if reaction_to(cause, "send") is Reaction.REFUSED:
                        self.refused = RejectedRecord(tp, cause, message.offset(), size)
                        return total
                    self._raise_for_send(error)
                break
        return total

    def spans(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Wait until all records are written; return the first and last offset of each partition.

        If the target rejected a record, `refused` is set and the result is empty. After an error
        the transaction must be aborted.
        """
        deadline = self._clock.monotonic_s() + self._transaction_timeout_s
        left = 1
        # Records after a rejected record stay queued until the transaction is aborted.
        while left and self.refused is None and self._failure is None:
            if self._clock.monotonic_s() > deadline:
                break
            left = self._flush(_FLUSH_S)
        if self.refused is not None:
            return {}
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._raise(KafkaException(failure), "send")
        if left or self._unreported - self._spans.keys():
            raise OutcomeUnknownError("producer, send: not all records were taken in time")
        return dict(self._spans)

    def _span_reported(
        self,
        number: int,
        tp: TopicPartition,
        error: KafkaError | None,
        message: confluent_kafka.Message,
        *,
        source: int | None = None,
        size: int | None = None,
    ) -> None:
        if number != self._number:
            return
        if error is not None:
            if reaction_to(error, "send") is Reaction.REFUSED:
                if self.refused is None or self.refused.source_offset is None:
                    self.refused = RejectedRecord(tp, error, source, size)
            elif error.code() not in _VOID:
                self._failure = error
            return
        offset = message.offset()
        assert offset is not None
        low, high = self._spans.get(tp, (offset, offset))
        self._spans[tp] = min(low, offset), max(high, offset)


def _produce_any(produce: Callable[..., None], *record: Any) -> None:
    produce_any(partial(produce, *record[:-1]), record[-1])
