"""Reader of an offset range of a partition in the Python worker, with the live consumer and no jar.

It reads only committed records, up to an end that is not past the last stable offset, unless the
application reads its inputs uncommitted. A range may end in transaction markers or records of
aborted transactions: the position of the consumer moves past them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.clients import BrokerState
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.connectivity import rejection_error
from headrace.streams.kafka.consumer import LiveConsumer, MakeClient
from headrace.streams.kafka.protocols import Clock, Consumer, ReceivedMessage, TopicPartition

_SURE_AFTER_S = 1.0
"""Another broker may lead the partition and accept this client."""


class RangeConsumer(LiveConsumer):
    """Consumer without a consumer group that fails fast if the brokers reject it.

    In a worker, a `BrokerMonitor` does this for all clients; an executor has only this client.

    Args:
        config: librdkafka's settings, from `StreamsConfig.restore_config`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        state: BrokerState | None = None,
        clock: Clock | None = None,
        make_client: MakeClient | None = None,
    ) -> None:
        self._state = state or BrokerState()
        self._settings = config
        self._time = clock or SystemClock()
        self._rejected_s: float | None = None
        super().__init__(
            config, timeout_s=timeout_s, clock=clock, make_client=make_client, brokers=self._state
        )

    def poll(
        self, max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        """Return the next records; raise AccessError if the brokers reject this client."""
        found = super().poll(max_records, timeout_s)
        if found:
            self._state.reset()
            self._rejected_s = None
        else:
            self._raise_if_rejected()
        return found

    def _raise_if_rejected(self) -> None:
        final = next((failure for failure in self._state.failures if failure.is_final), None)
        if final is None:
            self._rejected_s = None
            return
        now_s = self._time.monotonic_s()
        if self._rejected_s is None:
            self._rejected_s = now_s
        elif now_s - self._rejected_s >= _SURE_AFTER_S:
            raise rejection_error(final, self._settings)


BATCH_RECORDS = 5000
"""The largest batch."""
_POLL_S = 0.1

OpenConsumer = Callable[[], Consumer]


def consumer_opener(config: StreamsConfig, *, committed: bool = True) -> OpenConsumer:
    """Return a function that opens a consumer without a group.

    For inputs, pass `StreamsConfig.reads_committed`, so that the backfill reads the same records
    as the live application.
    """

    def open_consumer() -> Consumer:
        settings: dict[str, Any] = {
            **config.restore_config(),
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "queued.max.messages.kbytes": 16 * 1024,
        }
        return RangeConsumer(settings, timeout_s=config.task_timeout_ms / 1000)

    return open_consumer


def read_range(
    open_consumer: OpenConsumer,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    timeout_s: float,
    clock: Clock | None = None,
) -> Iterator[Sequence[ReceivedMessage]]:
    """Yield the records of a partition with `start` <= offset < `end`, in batches.

    `end` is not past the last stable offset; `timeout_s` limits the time without progress.
    Deleted records of the range raise OffsetLostError.
    """
    if start >= end:
        return
    clock = clock or SystemClock()
    consumer = open_consumer()
    with cleanup_after(lambda: consumer.close(leave=False), quietly=True):
        consumer.add({tp: start})
        reached, last_s = start, clock.monotonic_s()
        while reached < end:
            records = consumer.poll(BATCH_RECORDS, _POLL_S).get(tp, ())
            before = reached
            if records:
                reached = records[-1].offset() + 1
                if reached > end:
                    records = [record for record in records if record.offset() < end]
                if records:
                    yield records
            # The position passes markers and aborted records.
            reached = max(reached, consumer.positions([tp]).get(tp, reached))
            if reached > before:
                last_s = clock.monotonic_s()
            elif clock.monotonic_s() - last_s > timeout_s:
                raise BackfillError(
                    f"no records received for {timeout_s:.0f} s ({tp}, after offset {reached} of "
                    f"{end}). Check the brokers, or increase task.timeout.ms, and run the backfill "
                    "again with the same id"
                )
