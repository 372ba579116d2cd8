"""Logs of a simulated cluster, which can be compacted."""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import Message

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.local_cluster import PartitionLog


@dataclass(slots=True, eq=False)
class Txn:
    """Transaction with its partitions, its offsets and its outcome."""

    owner: str
    epoch: int = 0
    committed: bool | None = None
    """The decision of the coordinator; None while it is open."""
    places: dict[TopicPartition, None] = field(default_factory=dict)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    markers_due: int = 0


class Log(PartitionLog[Message, Txn]):
    """Log of a partition."""

    __slots__ = ()

    def records(self, *, committed: bool = True) -> list[Message]:
        return self.read(self.start, 1 << 60, committed=committed)[0]

    def compact(self) -> int:
        """Remove decided records whose key has a later record, and return their number."""
        last: dict[bytes | None, int] = {}
        bound = self.last_stable
        for offset in range(self.start, bound):
            entry = self.entries[offset]
            if entry is not None and self.is_final(offset):
                last[entry.key()] = offset
        gone = 0
        # The last entry stays, because compaction never removes the end of a log.
        for offset in range(self.start, min(bound, self.end - 1)):
            entry = self.entries[offset]
            if entry is not None and last.get(entry.key()) != offset:
                self.entries[offset] = None
                gone += 1
        return gone
