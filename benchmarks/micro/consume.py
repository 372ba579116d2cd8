"""From a batch as the client returns it to a task's queue, beside a loop over the batch.

The batch is in memory: what the client itself costs is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Message

from benchmarks.micro.timing import Comparison, compare
from headrace.streams.kafka.consumer import by_partition

RECORDS = 5000


def batch(partitions: int) -> list[Message]:
    """Records of several partitions, as fetches interleave them: in runs."""
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


def by_hand(records: list[Message]) -> Callable[[], object]:
    """What no program can do without: look for errors, read key, value and timestamp."""

    def run() -> None:
        for m in records:
            if m.error():
                raise AssertionError
            m.key(), m.value(), m.timestamp()

    return run


def grouped(records: list[Message]) -> Callable[[], object]:
    """The same, with the runtime's grouping by partition before it."""

    def run() -> None:
        for group in by_partition(records, {}).values():
            for m in group:
                m.key(), m.value(), m.timestamp()

    return run


def main() -> None:
    """Time the way into a task."""
    compare(
        "receiving, ns per record",
        [
            Comparison(
                f"{partitions} partition{'s' * (partitions > 1)}",
                RECORDS,
                grouped(records := batch(partitions)),
                by_hand(records),
            )
            for partitions in (1, 4)
        ],
    )


if __name__ == "__main__":
    main()
