"""When a worker commits, by a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.streams.commit.commit_timing import IDLE_COMMIT_COST_FACTOR, CommitTiming
from headrace.streams.config.config import StreamsConfig
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.testing.memory_worker import ManualClock

HERE = TopicPartition("in", 0)
SETTINGS = {
    "application.id": "a",
    "bootstrap.servers": "b:1",
    "processing.guarantee": "exactly_once_v2",
    "commit.interval.ms": 1000,
    "max.poll.records": 10,
}


@dataclass
class Task:
    """As much of one as is asked: what waits, and where it is."""

    waits: int = 0
    dirty: bool = True
    rows: int = 0
    external_inputs: tuple[TopicPartition, ...] = (HERE,)
    next_offset: dict[TopicPartition, int] = field(default_factory=lambda: {HERE: 5})

    def queued(self) -> int:
        return self.waits

    def needs_commit(self) -> bool:
        return self.dirty

    def uncommitted_bytes(self) -> int:
        return self.rows


@dataclass
class Cluster:
    """A consumer, its partition's end, and the worker's tasks."""

    end: int = 5
    running: list[Any] = field(default_factory=lambda: [Task()])

    def positions(self, places: Any) -> dict[TopicPartition, int]:
        return {HERE: 5}

    def lag(self, place: TopicPartition, next_offset: int) -> int:
        return self.end - next_offset


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(0)
        self.cluster: Any = Cluster()
        config = StreamsConfig.parse(
            {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
        )
        self.max_poll_records = config.max_poll_records
        consumer: Any = self.cluster
        self.timing = CommitTiming(config, consumer, consumer, clock=self.clock, keep_offsets_s=100)

    @property
    def task(self) -> Any:
        return self.cluster.running[0]

    def is_due(self, *, after_ms: int, processed: int = 1) -> bool:
        self.clock.pass_ms(after_ms)
        return self.timing.is_due(self.cluster.running, processed=processed)

    def commit(self, *, took_ms: int = 0, everything: bool = False) -> None:
        begun_s = self.clock.monotonic_s()
        self.clock.pass_ms(took_ms)
        self.timing.committed(begun_s, everything=everything)

    def keep_busy(self) -> None:
        """Let records wait, so that the interval alone decides."""
        self.task.waits = 1


def test_idle_inputs_are_committed_again_while_others_move() -> None:
    """Each commit of what moves would put it off for ever."""
    bench = Bench()
    for _ in range(99):
        bench.clock.pass_ms(1000)
        bench.commit()
        assert not bench.timing.is_due_for_all()
    bench.clock.pass_ms(1000)
    assert bench.timing.is_due_for_all()
    bench.commit(everything=True)
    assert not bench.timing.is_due_for_all()


def test_a_commit_is_due_when_the_interval_is_over() -> None:
    bench = Bench()
    bench.keep_busy()
    assert not bench.is_due(after_ms=999)
    assert bench.is_due(after_ms=1)
    bench.commit()
    assert not bench.is_due(after_ms=999)


def test_the_interval_begins_when_there_is_something_to_commit() -> None:
    """The first record after a pause shares its commit with those that follow."""
    bench = Bench()
    bench.keep_busy()
    bench.clock.pass_ms(5000)
    bench.timing.nothing_to_commit()
    assert not bench.is_due(after_ms=999)


def test_too_much_that_is_uncommitted_is_not_kept_for_the_interval() -> None:
    limit = 2 << 20
    bench = Bench(statestore_uncommitted_max_bytes=limit)
    bench.keep_busy()
    bench.task.rows = limit
    assert not bench.is_due(after_ms=1)
    bench.task.rows += 1
    assert bench.is_due(after_ms=0)
    assert not bench.is_due(after_ms=0, processed=0), "nothing was done since"


def test_a_drained_worker_commits_at_once_and_the_next_time_by_what_that_cost() -> None:
    bench = Bench()
    assert not bench.is_due(after_ms=19)
    assert bench.is_due(after_ms=1)
    bench.commit(took_ms=50)
    assert not bench.is_due(after_ms=50 * IDLE_COMMIT_COST_FACTOR - 1)
    assert bench.is_due(after_ms=1)


def test_a_worker_with_records_in_it_is_not_drained() -> None:
    bench = Bench()
    bench.task.waits = 1
    assert not bench.is_due(after_ms=500)


def test_a_worker_with_a_poll_of_records_at_the_broker_is_not_drained() -> None:
    """A few have always come in the meantime, under steady input."""
    bench = Bench()
    bench.cluster.end = 5 + bench.max_poll_records
    assert not bench.is_due(after_ms=500)
    bench.cluster.end -= 1
    assert bench.is_due(after_ms=0)


@pytest.mark.parametrize(
    "settings",
    [{"processing_guarantee": "at_least_once"}, {"commit_when_idle": False}],
    ids=["at least once", "switched off"],
)
def test_idle_commits_are_exactly_onces_alone_and_can_be_switched_off(
    settings: dict[str, Any],
) -> None:
    bench = Bench(**settings)
    assert not bench.is_due(after_ms=999)
    assert not bench.timing.waits_to_be_drained()
    assert Bench().timing.waits_to_be_drained()
