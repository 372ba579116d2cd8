"""Admin client base for clusters whose topics are objects of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from headrace.streams.kafka.protocols import NewTopic, TopicFacts, TopicPartition
from headrace.streams.testing.partition_log import PartitionLog


class LocalTopic(Protocol):
    """Topic with its configs."""

    name: str
    config: Any

    @property
    def id(self) -> str:
        """The topic id, which differs for each topic created with the same name."""

    @property
    def logs(self) -> Sequence[PartitionLog[Any, Any]]:
        """The logs of its partitions."""


class LocalCluster(Protocol):
    """Cluster with topics in this process."""

    @property
    def topics(self) -> Mapping[str, LocalTopic]:
        """All topics by name."""

    def create(self, name: str, partitions: int, config: Mapping[str, str], /) -> object:
        """Create a topic if it does not exist."""

    def log(self, tp: TopicPartition) -> PartitionLog[Any, Any]:
        """Return the log of a partition."""

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Delete the records before an offset."""


_BROKER_DEFAULTS = {"offsets.retention.minutes": "10080"}

ClusterT = TypeVar("ClusterT", bound=LocalCluster)


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

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._cluster.log(tp).end for tp in partitions}

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._cluster.log(tp).last_stable for tp in partitions}

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._cluster.log(tp).start for tp in partitions}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        for tp, offset in before.items():
            self._cluster.delete_before(tp, offset)

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        found = self._cluster.topics[topic]
        kept = {name: value for name, value in found.config.items() if name not in config}
        set_now = {name: value for name, value in config.items() if value is not None}
        found.config = kept | set_now
