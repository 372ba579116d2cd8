"""A worker on a cluster in memory whose consumer and steps can be made to fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import CommittedOffset, ReceivedMessage, TopicPartition
from headrace.streams.plan.plan import plan_application
from headrace.streams.tasks.driver_disk import MemoryDisk
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_clients import MemoryConsumer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import (
    EventLog,
    ManualClock,
    WorkerCounts,
    create_topics,
    make_memory_worker,
)
from headrace.streams.worker.worker import Worker
from headrace.topology import Topology, serdes
from tests.support.topologies import NO_CACHE, key_count

HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)
CHANGELOG = TopicPartition("app-counts-changelog", 1)
SETTINGS = {
    **NO_CACHE,
    "application.id": "app",
    "bootstrap.servers": "nowhere:1",
    "commit.interval.ms": 5_000,
    "commit.interval.min.ms": 5_000,
}


class Member(MemoryConsumer):
    """A consumer whose name in the group can change, as after a session that ended."""

    name = "member"
    before_poll: Callable[[], None] | None = None
    waited_s = 0.0
    abandoned_clients = 0
    """How long the last poll might have waited."""

    def member_id(self) -> str:
        return self.name

    def poll(
        self, max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        self.waited_s = timeout_s
        if self.before_poll is not None:
            self.before_poll()
        return super().poll(max_records, timeout_s)


class WorkerBench:
    """A worker with a task of each partition of "in"; commits come when they are asked for."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.cluster = MemoryCluster(partitions=2)
        self.config = StreamsConfig.parse(SETTINGS)
        self.plans = plan_application(topology or key_count(), self.config)
        create_topics(self.cluster, self.plans, self.config)
        self.counts, self.log, self.clock = WorkerCounts(), EventLog(), ManualClock(0)
        self.failing: dict[str, StreamsError] = {}
        """What the next step of a name fails with."""
        self.disk = MemoryDisk()
        self.consumer = Member(self.cluster, group="app", committed=True)

    def start(self) -> WorkerBench:
        self.worker: Worker = make_memory_worker(
            self.config,
            self.plans,
            cluster=self.cluster,
            consumer=self.consumer,
            disk=self.disk,
            clock=self.clock,
            counts=self.counts,
            probe=self.probe,
            log=self.log,
        )
        self.worker.begin()
        self.turns()
        return self

    def probe(self, step: str) -> None:
        if step in self.failing:
            raise self.failing.pop(step)

    def send(self, *keys: str, place: TopicPartition = HERE) -> None:
        for key in keys:
            self.cluster.append(place.topic, b"x", key.encode(), place.partition, 5, None)

    def turns(self, count: int = 5) -> None:
        for _ in range(count):
            self.worker.turn()

    def commit(self) -> None:
        """Go on until everything is committed that can be."""
        for _ in range(8):
            self.worker.request_commit()
            self.worker.turn()

    def out(self, *, committed: bool = True) -> list[tuple[str, int]]:
        """Keys and counts, partition by partition."""
        found = [
            message
            for log in self.cluster.topics["out"].logs
            for message in log.read(0, 1000, committed=committed)[0]
        ]
        decode = serdes.long.deserialize
        return [((m.key() or b"").decode(), decode(m.value() or b"")) for m in found]

    def offsets(self) -> dict[TopicPartition, int]:
        """The committed offset of each partition."""
        return {place: c.offset for place, c in self.cluster.offsets.get("app", {}).items()}

    def owned(self) -> list[str]:
        return [str(task_id) for task_id in self.worker.tasks.owned]

    def running(self) -> list[str]:
        return sorted(str(task.id) for task in self.worker.tasks.running)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.log.events if event["event"] == name]


class RestoringBench(WorkerBench):
    """The second task is being restored: its changelog ends in an undecided transaction."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(3):
            self.row(number)
        self.undecided = Transaction()
        self.row(3, self.undecided)
        # Whoever wrote the rows has committed offsets too.
        self.cluster.commit_offsets("app", {THERE: CommittedOffset(0)})
        self.start()
        assert self.running() == ["0_0"]

    def row(self, number: int, transaction: Transaction | None = None) -> None:
        key, value = b"old-%d" % number, serdes.long.serialize(number)
        self.cluster.append(CHANGELOG.topic, value, key, 1, 5, None, transaction)

    def decide(self) -> None:
        self.cluster.end(self.undecided, committed=True)
