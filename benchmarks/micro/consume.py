"""Grouping of a batch by partition, compared with a loop: ``python -m benchmarks.micro.consume``.

The batch is in memory, because every program has the cost of the client. Prints nanoseconds per
record from the batch that the client returns to the queue of a task.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Message

from benchmarks.micro.timing import TimedPair, print_times
from headrace.streams.kafka.consumer import by_partition

RECORDS = 5000


def batch(partitions: int) -> list[Message]:
    """Return records of several partitions, with runs of one partition as in fetches."""
    run = 500
    return [
        Message(
            topic="input",
            partition=number // run % partitions,
            offset=number,
            key=b"key-%d" % number,
            value=b"value-%d" % number,
            timestamp=(1, 1_700_000_000_000 + number),
        )
        for number in range(RECORDS)
    ]


def plain_loop(records: list[Message]) -> Callable[[], object]:
    """Check for errors, and read key, value and timestamp, as every program must."""

    def run() -> None:
        for m in records:
            if m.error():
                raise AssertionError
            m.key(), m.value(), m.timestamp()

    return run


def grouped(records: list[Message]) -> Callable[[], object]:
    """Group by partition as the consumer does, and read key, value and timestamp."""

    def run() -> None:
        for group in by_partition(records, {}).values():
            for m in group:
                m.key(), m.value(), m.timestamp()

    return run


def main() -> None:
    """Time the grouping of received records."""
    print_times(
        "receiving, ns per record",
        [
            TimedPair(
                f"{partitions} partition{'s' * (partitions > 1)}",
                RECORDS,
                grouped(records := batch(partitions)),
                plain_loop(records),
            )
            for partitions in (1, 4)
        ],
    )


if __name__ == "__main__":
    main()
