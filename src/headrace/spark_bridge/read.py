"""Reads a range of a topic's partition in the Python worker: no jar, and the client used live.

Only committed records are read, up to an end that is not past the last stable offset, unless the
application reads its inputs otherwise. A range may end in markers or in records of aborted
transactions: the client's position passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError
from headrace.streams.config.config import StreamsConfig
from headrace.streams.seams.clients import Clock, Consumer, ReceivedMessage, TopicPartition
from headrace.streams.seams.system_clock import SystemClock

BATCH_RECORDS = 5000
"""The largest batch."""
_POLL_S = 0.1

OpenConsumer = Callable[[], Consumer]


def consumer_opener(config: StreamsConfig, *, committed: bool = True) -> OpenConsumer:
    """Return what opens a consumer that is in no group.

    Args:
        committed: whether it leaves out what is aborted or undecided; for inputs,
            `StreamsConfig.reads_committed` says so, as for the live application.
    """

    def open_consumer() -> Consumer:
        # Executors need the client, importers do not.
        from headrace.spark_bridge.range_consumer import RangeConsumer

        settings: dict[str, Any] = {
            **config.restore_config(),
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "queued.max.messages.kbytes": 16 * 1024,
        }
        return RangeConsumer(settings, timeout_s=config.task_timeout_ms / 1000)

    return open_consumer


def read_range(
    open_consumer: OpenConsumer,
    place: TopicPartition,
    start: int,
    end: int,
    *,
    timeout_s: float,
    clock: Clock | None = None,
) -> Iterator[Sequence[ReceivedMessage]]:
    """Yield the records of a partition with `start` <= offset < `end`, in batches.

    Args:
        start: the first offset; it must still be there.
        end: the offset to stop before, not past the last stable one.
        timeout_s: how long nothing may come, in seconds.
        clock: measures that time.

    Raises:
        AccessError: the brokers do not let the consumer in, or it does not trust them.
        OffsetLostError: the broker has deleted records of the range.
        BackfillError: nothing came for too long.
    """
    if start >= end:
        return
    clock = clock or SystemClock()
    consumer = open_consumer()
    with and_then(lambda: consumer.close(leave=False), quietly=True):
        consumer.add({place: start})
        reached, last_s = start, clock.monotonic_s()
        while reached < end:
            records = consumer.poll(BATCH_RECORDS, _POLL_S).get(place, ())
            before = reached
            if records:
                reached = records[-1].offset() + 1
                if reached > end:
                    records = [record for record in records if record.offset() < end]
                if records:
                    yield records
            # The position passes markers and aborted records.
            reached = max(reached, consumer.positions([place]).get(place, reached))
            if reached > before:
                last_s = clock.monotonic_s()
            elif clock.monotonic_s() - last_s > timeout_s:
                raise BackfillError(
                    f"nothing came of {place} after offset {reached} for {timeout_s:.0f} s, though "
                    f"it was to be read up to {end}; see that the brokers are up, or raise "
                    "task.timeout.ms, and run the backfill again with the same id"
                )
