"""A task that is being restored, and tasks that run: neither stops the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import AbortableError
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
from headrace.topology import serdes
from tests.support.topologies import NO_CACHE, key_count

HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)
CHANGELOG = TopicPartition("app-counts-changelog", 1)


@dataclass
class Starts(WorkerCounts):
    """Counts how often a restore began, too."""

    begun: Counter[str] = field(default_factory=Counter)

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        self.begun[str(place)] += 1


class Bench:
    """Two tasks; the changelog of the second ends in a transaction that nobody has decided."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(partitions=2)
        config = StreamsConfig.parse(
            {**NO_CACHE, "application.id": "app", "bootstrap.servers": "nowhere:1"}
        )
        plans = plan_application(key_count(), config)
        create_topics(self.cluster, plans, config)
        for number in range(3):
            self.row(number, transaction=None)
        self.undecided = Transaction()
        self.row(3, transaction=self.undecided)
        # Whoever wrote the rows has committed offsets too.
        self.cluster.commit_offsets("app", {THERE: CommittedOffset(0)})
        self.failing: list[str] = []
        self.counts = Starts()
        self.worker: Worker = make_memory_worker(
            config,
            plans,
            cluster=self.cluster,
            consumer=MemoryConsumer(self.cluster, group="app", committed=True),
            disk=MemoryDisk(),
            clock=ManualClock(0),
            counts=self.counts,
            probe=self.probe,
            log=EventLog(),
        )
        self.worker.begin()

    def row(self, number: int, transaction: Transaction | None) -> None:
        value = serdes.long.serialize(number)
        key = b"old-%d" % number
        self.cluster.append(CHANGELOG.topic, value, key, 1, 5, None, transaction)

    def send(self, place: TopicPartition, key: bytes) -> None:
        self.cluster.append(place.topic, b"x", key, place.partition, 5, None)

    def probe(self, step: str) -> None:
        if step in self.failing:
            self.failing.remove(step)
            raise AbortableError(f"injected at {step}")

    def turns(self, count: int = 5) -> None:
        for _ in range(count):
            self.worker.request_commit()
            self.worker.turn()

    def out(self) -> list[bytes | None]:
        logs = self.cluster.topics["out"].logs if "out" in self.cluster.topics else []
        return [m.key() for log in logs for m in log.read(0, 100, committed=True)[0]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_tasks_process_while_another_one_is_restored(bench: Bench) -> None:
    bench.send(HERE, b"a")
    bench.turns()
    assert bench.out() == [b"a"]
    assert bench.counts.begun[str(CHANGELOG)] == 1
    assert not bench.worker.tasks.all_running


def test_a_restore_goes_on_when_the_transaction_of_others_is_aborted(bench: Bench) -> None:
    """What it reads was committed before; to begin it again would cost hours for nothing."""
    bench.send(HERE, b"a")
    bench.turns(2)
    bench.failing = ["changelogs_written"]
    bench.send(HERE, b"b")
    bench.turns()
    assert not bench.failing
    assert bench.out() == [b"a", b"b"]
    assert bench.counts.begun[str(CHANGELOG)] == 1


def test_a_restored_task_runs_once_its_changelog_is_decided(bench: Bench) -> None:
    bench.send(THERE, b"old-1")
    bench.turns()
    assert bench.out() == []
    bench.cluster.end(bench.undecided, committed=True)
    bench.turns()
    assert bench.out() == [b"old-1"]
    assert bench.worker.tasks.all_running
    assert bench.counts.restored == 4


def test_a_restore_that_finds_nothing_waits_a_moment_and_looks_whether_it_is_at_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changelog may end in a marker, behind which no record comes that would end the wait."""
    waits_s: list[float] = []
    poll = MemoryConsumer.poll

    def told(
        self: MemoryConsumer, max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        if self._group is None:
            waits_s.append(timeout_s)
        return poll(self, max_records, timeout_s)

    bench.turns()
    monkeypatch.setattr(MemoryConsumer, "poll", told)
    bench.turns()
    assert waits_s
    assert 0 < min(waits_s) <= max(waits_s) <= 0.02, "neither all the time nor for long"
