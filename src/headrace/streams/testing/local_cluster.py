"""Base of a cluster in this process, and of its admin client: topics with their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.streams.kafka.protocols import (
    CommittedOffset,
    NewTopic,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import plan_internal_topics

CREATE_TIME = 1
"""Kafka's type of a timestamp that the producer has set."""


@dataclass(slots=True, eq=False)
class Transaction:
    """Transaction with the partitions that it wrote to, and the offsets that it commits.

    Args:
        committed: its outcome; None while it is open.
        offsets: the offsets by group.
    """

    committed: bool | None = None
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)


T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=Any)


class PartitionLog(Generic[MessageT]):
    """Log of a partition: each offset has a record, with or without a transaction, or a marker."""

    __slots__ = ("_writers", "entries", "open", "start")

    def __init__(self) -> None:
        self.entries: list[MessageT | None] = []
        self._writers: list[Transaction | None] = []
        self.start = 0
        self.open: dict[Transaction, int] = {}
        """The first offset of each transaction without a marker in this log, the lowest first."""

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.entries)

    @property
    def last_stable(self) -> int:
        """The last stable offset: the first offset of the oldest open transaction, or the end."""
        return next(iter(self.open.values()), self.end)

    def append(self, message: MessageT, transaction: Transaction | None) -> None:
        """Append a record, which is open until its transaction has a marker here."""
        if transaction is not None and transaction not in self.open:
            self.open[transaction] = self.end
        self.entries.append(message)
        self._writers.append(transaction)

    def mark(self, transaction: Transaction) -> None:
        """Append the marker of a transaction that has records here."""
        if self.open.pop(transaction, None) is not None:
            self.entries.append(None)
            self._writers.append(transaction)

    def cut(self, entries: Sequence[MessageT | None], start: int) -> None:
        """Reset the log to earlier contents, from a time when no transaction was open."""
        self.entries[:] = entries
        del self._writers[len(entries) :]
        self.start = start
        self.open.clear()

    def writer(self, offset: int) -> Transaction | None:
        """Return the transaction of the record or marker at an offset, if any."""
        return self._writers[offset]

    def is_final(self, offset: int) -> bool:
        """Return whether the record at an offset is committed, or not part of a transaction."""
        writer = self._writers[offset]
        return writer is None or writer.committed is True

    def read(self, offset: int, limit: int, *, committed: bool) -> tuple[list[MessageT], int]:
        """Return up to `limit` records from `offset` on, and the next offset to read.

        Markers are skipped, and with `committed` also aborted records, even after the last record.
        """
        end = self.last_stable if committed else self.end
        found: list[MessageT] = []
        while offset < end:
            entry = self.entries[offset]
            if entry is not None and (not committed or self.is_final(offset)):
                if len(found) == limit:
                    break
                found.append(entry)
            offset += 1
        return found, offset

    def records(self) -> list[MessageT]:
        """Return all committed records."""
        return self.read(self.start, 1 << 60, committed=True)[0]

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
class LocalTopic(Generic[MessageT]):
    """Topic with its id, which differs for each topic created with the same name."""

    name: str
    id: str
    logs: list[PartitionLog[MessageT]]
    config: dict[str, str]


class LocalCluster(Generic[MessageT]):
    """Cluster whose topics and committed offsets are objects of this process.

    Args:
        new_id: returns the id of a topic that is created, given its name.
    """

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self._new_id = new_id
        self.topics: dict[str, LocalTopic[MessageT]] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        """The committed offsets by group."""

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> LocalTopic[MessageT]:
        """Create a topic, or return the existing topic."""
        if name not in self.topics:
            logs = [PartitionLog[MessageT]() for _ in range(partitions)]
            self.topics[name] = LocalTopic(name, self._new_id(name), logs, dict(config))
        return self.topics[name]

    def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group."""
        return self.offsets.get(group, {})

    def log(self, tp: TopicPartition) -> PartitionLog[MessageT]:
        """Return the log of a partition."""
        return self.topics[tp.topic].logs[tp.partition]

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic; none if it does not exist."""
        found = self.topics.get(topic)
        return [TopicPartition(topic, p) for p in range(len(found.logs))] if found else []

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Delete the records before an offset."""
        log = self.log(tp)
        log.start = max(log.start, min(offset, log.end))


_BROKER_DEFAULTS = {"offsets.retention.minutes": "10080"}

ClusterT = TypeVar("ClusterT", bound=LocalCluster[Any])


class LocalAdmin(Generic[ClusterT]):
    """Admin client of topics that are objects of this process (`kafka.protocols.AdminClient`)."""

    def __init__(self, cluster: ClusterT) -> None:
        self._cluster = cluster

    def _request(self, call: str, effect: Callable[[], T]) -> T:  # noqa: ARG002
        """Run the effect of a request; a subclass can delay it, or let it fail."""
        return effect()

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        wanted, topics = list(names), self._cluster.topics
        return self._request(
            "describe",
            lambda: {
                t.name: TopicDescription(t.name, len(t.logs), t.id, t.config)
                for t in (topics[name] for name in wanted if name in topics)
            },
        )

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return {name: found.partitions for name, found in self.describe(names).items()}

    def ask_ids(self, topics: Sequence[str]) -> Callable[[float], Mapping[str, str] | None]:
        found = {name: found.topic_id for name, found in self.describe(topics).items()}
        return lambda _: found

    def names(self) -> frozenset[str]:
        return frozenset(self._cluster.topics)

    def broker_configs(self, name: str) -> Sequence[str]:
        return [_BROKER_DEFAULTS[name]]

    def groups(self) -> frozenset[str]:
        return frozenset()

    def create(self, topics: Sequence[NewTopic]) -> None:
        for topic in topics:
            self._cluster.create(topic.name, topic.partitions, topic.config)

    def create_internal(self, plans: Iterable[SubPlan], configs: Mapping[str, str]) -> None:
        """Create the internal topics of an application, as its start does."""
        topics = [plan.topics for plan in plans]
        planned = plan_internal_topics(topics, self.describe(self.names()), topic_configs=configs)
        self.create(planned.create)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._of_logs("end_offsets", partitions, lambda log: log.end)

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._of_logs("end_offsets", partitions, lambda log: log.last_stable)

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._of_logs("start_offsets", partitions, lambda log: log.start)

    def _of_logs(
        self,
        call: str,
        partitions: Iterable[TopicPartition],
        offset: Callable[[PartitionLog[Any]], int],
    ) -> dict[TopicPartition, int]:
        tps = list(partitions)
        return self._request(call, lambda: {tp: offset(self._cluster.log(tp)) for tp in tps})

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        tps = list(partitions)

        def effect() -> dict[TopicPartition, CommittedOffset]:
            known = self._cluster.committed(group)
            return {tp: known[tp] for tp in tps if tp in known}

        return self._request("end_offsets", effect)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        offsets = dict(before)

        def effect() -> None:
            for tp, offset in offsets.items():
                self._cluster.delete_before(tp, offset)

        self._request("delete_records", effect)

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        found = self._cluster.topics[topic]
        unchanged = {name: value for name, value in found.config.items() if name not in config}
        set_now = {name: value for name, value in config.items() if value is not None}
        found.config = unchanged | set_now
