"""Topics of a simulated cluster with their logs, which can be compacted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message

from headrace.state.codec import partition_for_key
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.partition_log import PartitionLog


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


@dataclass(slots=True, eq=False)
class Topic:
    """Topic with its partitions, its id and its configs."""

    name: str
    id: str
    logs: list[Log]
    config: Mapping[str, str]

    def partition_of(self, key: bytes | None, turn: int) -> int:
        count = len(self.logs)
        return turn % count if key is None else partition_for_key(key, count)
