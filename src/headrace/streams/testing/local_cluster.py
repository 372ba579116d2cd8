"""Base of a cluster in this process, and of its admin client: topics with their logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headrace.streams.kafka.protocols import CommittedOffset, NewTopic, TopicFacts, TopicPartition
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import plan_internal_topics


class Decided(Protocol):
    """Transaction with the properties that a reader of its records needs."""

    @property
    def committed(self) -> bool | None:
        """Whether it was committed; None while it is open."""


MessageT = TypeVar("MessageT")
TransactionT = TypeVar("TransactionT", bound=Decided)


class PartitionLog(Generic[MessageT, TransactionT]):
    """Log of a partition: each offset has a record, with or without a transaction, or a marker."""

    __slots__ = ("_writers", "entries", "open", "start")

    def __init__(self) -> None:
        self.entries: list[MessageT | None] = []
        self._writers: list[TransactionT | None] = []
        self.start = 0
        self.open: dict[TransactionT, int] = {}
        """The first offset of each transaction without a marker in this log, the lowest first."""

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.entries)

    @property
    def last_stable(self) -> int:
        """The last stable offset: the first offset of the oldest open transaction, or the end."""
        return next(iter(self.open.values()), self.end)

    def append(self, message: MessageT, transaction: TransactionT | None) -> None:
        if transaction is not None and transaction not in self.open:
            self.open[transaction] = self.end
        self.entries.append(message)
        self._writers.append(transaction)

    def mark(self, transaction: TransactionT) -> None:
        if self.open.pop(transaction, None) is not None:
            self.entries.append(None)
            self._writers.append(transaction)

    def cut(self, entries: Sequence[MessageT | None], start: int) -> None:
        """Reset the log to earlier contents, from a time when no transaction was open."""
        self.entries[:] = entries
        del self._writers[len(entries) :]
        self.start = start
        self.open.clear()

    def writer(self, offset: int) -> TransactionT | None:
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


LogT = TypeVar("LogT", bound=PartitionLog[Any, Any])


@dataclass(slots=True, eq=False)
class LocalTopic(Generic[LogT]):
    """Topic with its id, which differs for each topic created with the same name."""

    name: str
    id: str
    logs: list[LogT]
    config: dict[str, str]


class LocalCluster(ABC, Generic[LogT]):
    """Cluster whose topics are objects of this process."""

    def __init__(self) -> None:
        self.topics: dict[str, LocalTopic[LogT]] = {}

    @abstractmethod
    def create(self, name: str, partitions: int, config: Mapping[str, str], /) -> object:
        """Create a topic if it does not exist."""

    @abstractmethod
    def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group."""

    def log(self, tp: TopicPartition) -> LogT:
        """Return the log of a partition."""
        return self.topics[tp.topic].logs[tp.partition]

    def places(self, topic: str) -> list[TopicPartition]:
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
    """Admin client of topics that are objects of this process (`plan.topics.TopicAdmin`)."""

    def __init__(self, cluster: ClusterT) -> None:
        self._cluster = cluster

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        found = [self._cluster.topics[name] for name in names if name in self._cluster.topics]
        return {t.name: TopicFacts(t.name, len(t.logs), t.id, t.config) for t in found}

    def ask_ids(self, topics: Sequence[str]) -> Callable[[float], Mapping[str, str] | None]:
        found = {name: facts.topic_id for name, facts in self.describe(topics).items()}
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
        return {tp: self._cluster.log(tp).end for tp in partitions}

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._cluster.log(tp).last_stable for tp in partitions}

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._cluster.log(tp).start for tp in partitions}

    def progress(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        # Not self: in a subclass, each call may be a request.
        found = LocalAdmin.committed_offsets(self, group, partitions)
        return {tp: committed.offset for tp, committed in found.items()}

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        known = self._cluster.committed(group)
        return {tp: known[tp] for tp in partitions if tp in known}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        for tp, offset in before.items():
            self._cluster.delete_before(tp, offset)

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        found = self._cluster.topics[topic]
        kept = {name: value for name, value in found.config.items() if name not in config}
        set_now = {name: value for name, value in config.items() if value is not None}
        found.config = kept | set_now
