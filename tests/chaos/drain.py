"""Whether the application has caught up with its input, and if not, what is in its way."""

from __future__ import annotations

import time
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from tests.chaos import application
from tests.chaos.status import Field
from tests.chaos.workers import Fleet
from tests.support import kafka

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Left:
    """What a group has still to read of one partition.

    Args:
        place: topic and partition.
        committed: the group's offset, negative if there is none.
        records: committed records from there on.
        stable: the last stable offset: where readers of committed records stop.
        end: the high watermark.
    """

    place: str
    committed: int
    records: int
    stable: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.records} records left from {self.committed} on; "
            f"stable to {self.stable}, written to {self.end}"
        )


def inputs(prefix: str) -> dict[str, int]:
    """Topics that the group reads, with their partitions; the repartition topics are among them."""
    found = {application.topic(prefix, name): count for name, count in application.INPUTS.items()}
    between = (application.repartition_topic(prefix, n) for n in application.REPARTITIONS)
    return {**found, **dict.fromkeys(between, application.PARTITIONS)}


def left(bootstrap: str, prefix: str) -> list[Left]:
    """What is left to read, by partition; partitions without any are left out."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": application.application_id(prefix),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    places = [
        confluent_kafka.TopicPartition(topic, partition)
        for topic, count in inputs(prefix).items()
        for partition in range(count)
    ]
    try:
        committed = consumer.committed(places, timeout=_ANSWER_S)
        counts = _count(consumer, committed)
        found = []
        for place in committed:
            records, stable = counts[place.topic, place.partition]
            _, end = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
            # Markers behind the offset are no records, but an open transaction hides some.
            if records or stable < end:
                name = f"{place.topic}-{place.partition}"
                found.append(Left(name, place.offset, records, stable, end))
        return found
    finally:
        consumer.close()


def _count(
    consumer: confluent_kafka.Consumer, committed: list[confluent_kafka.TopicPartition]
) -> dict[tuple[str, int], tuple[int, int]]:
    """How many committed records follow each offset, and the position at the end of them."""
    starts = [
        confluent_kafka.TopicPartition(
            place.topic,
            place.partition,
            place.offset if place.offset >= 0 else confluent_kafka.OFFSET_BEGINNING,
        )
        for place in committed
    ]
    consumer.assign(starts)
    found = {(place.topic, place.partition): (0, -1) for place in starts}
    missing = set(found)
    deadline = time.monotonic() + 60
    while missing and time.monotonic() < deadline:
        for message in kafka.batch(consumer, 1_000, 0.2):
            error = message.error()
            place = (message.topic() or "", message.partition() or 0)
            if error is None:
                found[place] = (found[place][0] + 1, -1)
            elif error.code() == KafkaError._PARTITION_EOF:
                found[place] = (found[place][0], message.offset() or 0)
                missing.discard(place)
            else:
                raise KafkaException(error)
    return found


def wait_drained(bootstrap: str, prefix: str, *, seconds: float) -> list[Left]:
    """Wait until nothing is left; returns what is left when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = left(bootstrap, prefix)
        except KafkaException as error:
            found = [Left(f"no answer: {error}", -1, -1, -1, -1)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


def diagnosis(fleet: Fleet, found: list[Left]) -> list[str]:
    """Say what is left, and what each worker does."""
    lines = [str(one) for one in found]
    for slot in fleet.slots:
        status = slot.status
        age_s = time.time() - status[Field.COMMITTED_NS] / 1e9
        lines.append(
            f"{slot.name}: alive={slot.lives} wanted={slot.wanted} tasks={slot.tasks} "
            f"running={status[Field.RUNNING]} restoring={status[Field.RESTORING]} "
            f"in_transaction={slot.in_transaction} step={status.step!r} "
            f"last commit {age_s:.0f} s ago; log {slot.log}"
        )
        if slot.lives:
            fleet.dump(slot)
    return lines
