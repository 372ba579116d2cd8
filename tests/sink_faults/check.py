"""The recount: what rows there must be by the committed records, and what is wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.sink_faults.load import ABORTED

Record = tuple[str, str | None]

_SILENCE_S = 60.0


@dataclass
class Verdict:
    """How many rows are wrong, and in which way."""

    lost: int = 0
    doubled: int = 0
    aborted: int = 0
    unknown: int = 0
    stale: int = 0
    """Rows under keys that have another value than the last one."""
    examples: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not any((self.lost, self.doubled, self.aborted, self.unknown, self.stale))

    def __str__(self) -> str:
        return (
            f"{self.lost} lost, {self.doubled} doubled, {self.aborted} aborted, "
            f"{self.unknown} unknown, {self.stale} not the last one"
        )


def check(
    records: Iterable[Record],
    appended: Sequence[tuple[str, str]],
    upserted: Sequence[tuple[str, str]],
) -> Verdict:
    """Compare rows with the committed records, in the order of each key."""
    verdict = Verdict()
    expected: Counter[tuple[str, str]] = Counter()
    last: dict[str, str] = {}
    for key, value in records:
        if value is None:
            last.pop(key, None)
        else:
            expected[key, value] += 1
            last[key] = value
    _check_appended(verdict, expected, Counter(appended))
    _check_upserted(verdict, last, upserted)
    return verdict


def _check_appended(
    verdict: Verdict, expected: Counter[tuple[str, str]], found: Counter[tuple[str, str]]
) -> None:
    for row, count in expected.items():
        if found[row] < count:
            verdict.lost += count - found[row]
            verdict.examples.append(f"lost: {row}")
    for row, count in found.items():
        more = count - expected[row]
        if more <= 0:
            continue
        if row[1].startswith(ABORTED):
            verdict.aborted += more
            verdict.examples.append(f"aborted: {row}")
        elif expected[row]:
            verdict.doubled += more
            verdict.examples.append(f"doubled: {row}")
        else:
            verdict.unknown += more
            verdict.examples.append(f"unknown: {row}")


def _check_upserted(
    verdict: Verdict, last: dict[str, str], upserted: Sequence[tuple[str, str]]
) -> None:
    kept = dict(upserted)
    verdict.doubled += len(upserted) - len(kept)
    for key in last.keys() | kept.keys():
        if kept.get(key) != last.get(key):
            is_aborted = (kept.get(key) or "").startswith(ABORTED)
            verdict.aborted += is_aborted
            verdict.stale += not is_aborted
            verdict.examples.append(f"{key}: {kept.get(key)}, and not {last.get(key)}")


def read_committed(bootstrap: str, topic: str) -> list[Record]:
    """All committed records of a topic, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-recount",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[Record] = []
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
        open_ones = set(partitions)
        deadline = time.monotonic() + _SILENCE_S
        while open_ones:
            for message in consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is None:
                    key, value = message.key() or b"", message.value()
                    found.append((key.decode(), None if value is None else value.decode()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ones.discard(message.partition())
                else:
                    raise KafkaException(error)
                deadline = time.monotonic() + _SILENCE_S
            assert time.monotonic() < deadline, f"{topic}: partitions {open_ones} say nothing"
    finally:
        consumer.close()
    return found
