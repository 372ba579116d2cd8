"""Progress of an application, measured from outside by the committed offsets of its group.

The method works for every library, and costs a few requests ten times per second. An application is
done when input topics and internal topics are committed to their ends, and offsets are stable.
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
"""Several commit intervals: records that were read are committed by then."""
INTERNAL = ("-repartition", "-topic")
"""Suffixes of internal topics that an application reads; the second is of foreign-key joins."""
INTERNAL_PART = "repartition__"

RETRIABLE = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
"""Errors while a new broker creates the topic of offsets."""

Tp = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Committed offset of each partition at a time of the monotonic clock."""

    at_s: float
    committed: dict[Tp, int]


class Progress:
    """Follows one group over its inputs.

    Args:
        bootstrap: the cluster.
        admin: a client of it.
        run: the group, which is part of the names of internal topics.
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
                # With read_committed, reads would wait for the end of each open transaction.
                "isolation.level": "read_uncommitted",
            }
        )

    def poll(self) -> bool:
        """Take a sample; return whether the application is done."""
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
        """Time of the last change of an offset."""
        return self._changed_s

    def steady_s(self) -> float:
        """Return the seconds from 20 % to 80 % of the offsets, interpolated between samples."""
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
        raise ValueError("offsets never reached the total")

    def _committed(self) -> dict[Tp, int]:
        # By a consumer, because the admin client crashes if there has never been a group.
        try:
            found = self._reader.committed(self._partitions(), TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in RETRIABLE:
                raise
            return self.samples[-1].committed if self.samples else {}
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def _partitions(self) -> list[TopicPartition]:
        topics = self.admin.list_topics(timeout=TIMEOUT_S).topics
        read = [
            name
            for name in topics
            if name in self.sources
            or (self.run in name and (name.endswith(INTERNAL) or INTERNAL_PART in name))
        ]
        return [TopicPartition(name, p) for name in read for p in topics[name].partitions]

    def _at_end(self, committed: dict[Tp, int]) -> bool:
        results = self.admin.list_offsets(
            {tp: OffsetSpec.latest() for tp in self._partitions()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        for tp, result in results.items():
            end = result.result(TIMEOUT_S).offset
            # The marker of the last transaction follows the last record.
            marker = 0 if tp.topic in self.sources else 1
            if committed.get((tp.topic, tp.partition), 0) < end - marker:
                return False
        return True
