"""How far an application is, seen from outside: the offsets that its group has committed.

It is the same for every library, and costs a few requests each tenth of a second. An application is
done when its inputs are committed to their ends, its own topics too, and nothing moves any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

TIMEOUT_S = 30.0
QUIET_S = 0.7
"""Some commits: what was read and not committed would have been by then."""
INTERNAL = ("-repartition", "-topic")
"""Ends of topics that an application writes and reads; a foreign-key join's is the second."""
INTERNAL_ANYWHERE = "repartition__"

MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
"""While a new broker makes the topic of offsets."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """The committed offset of each partition at a moment of the monotonic clock."""

    at_s: float
    committed: dict[Place, int]


class Progress:
    """Follows one group over its inputs.

    Args:
        bootstrap: the cluster.
        admin: a client of it.
        run: the group, and what the names of the application's own topics contain.
        sources: the input topics.
    """

    def __init__(
        self, bootstrap: str, admin: AdminClient, run: str, sources: Sequence[str]
    ) -> None:
        self.admin = admin
        self.run = run
        self.sources = sources
        self.samples: list[Sample] = []
        self._changed_s = 0.0
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "group.id": run,
                # Otherwise it would wait for the end of each open transaction.
                "isolation.level": "read_uncommitted",
            }
        )

    def look(self) -> bool:
        """Take a sample; returns whether the application is done."""
        at_s = time.monotonic()
        committed = self._committed()
        if not self.samples or committed != self.samples[-1].committed:
            self._changed_s = at_s
            self.samples.append(Sample(at_s, committed))
        if not committed or at_s - self._changed_s < QUIET_S:
            return False
        return self._at_end(committed)

    @property
    def ended_s(self) -> float:
        """When the last offset moved."""
        return self._changed_s

    def middle_s(self) -> float:
        """The time from a fifth of the way to four fifths, straight lines between samples."""
        last = sum(self.samples[-1].committed.values())
        return self._reached_s(0.8 * last) - self._reached_s(0.2 * last)

    def _reached_s(self, total: float) -> float:
        before_s, before = self.samples[0].at_s, sum(self.samples[0].committed.values())
        for sample in self.samples:
            here = sum(sample.committed.values())
            if here >= total:
                share = 1.0 if here == before else (total - before) / (here - before)
                return before_s + share * (sample.at_s - before_s)
            before_s, before = sample.at_s, here
        raise ValueError("never reached")

    def _committed(self) -> dict[Place, int]:
        # A consumer asks for it: the admin client crashes where no group has ever been.
        try:
            found = self._reader.committed(self._places(), TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in MOVING:
                raise
            return self.samples[-1].committed if self.samples else {}
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def _places(self) -> list[TopicPartition]:
        topics = self.admin.list_topics(timeout=TIMEOUT_S).topics
        read = [
            name
            for name in topics
            if name in self.sources
            or (self.run in name and (name.endswith(INTERNAL) or INTERNAL_ANYWHERE in name))
        ]
        return [TopicPartition(name, p) for name in read for p in topics[name].partitions]

    def _at_end(self, committed: dict[Place, int]) -> bool:
        asked = self.admin.list_offsets(
            {place: OffsetSpec.latest() for place in self._places()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        for place, answer in asked.items():
            end = answer.result(TIMEOUT_S).offset
            # The marker of the last transaction may stay behind the last record.
            marker = 0 if place.topic in self.sources else 1
            if committed.get((place.topic, place.partition), 0) < end - marker:
                return False
        return True
