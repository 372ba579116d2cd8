"""When a worker commits, by a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.memory_worker import ManualClock
from headrace.streams.worker.commit_timing import (
    BURST_RECORDS,
    COMMIT_COPIES,
    DRAINED_CHECK_S,
    CommitTiming,
)

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
    start: dict[TopicPartition, CommittedOffset] = field(
        default_factory=lambda: {HERE: CommittedOffset(0, "")}
    )

    def queued_in(self, place: TopicPartition) -> int:
        return self.waits

    def queued(self) -> int:
        return self.waits

    def needs_commit(self) -> bool:
        return self.dirty

    def uncommitted_bytes(self, copies: int) -> int:
        return self.rows * (1 + copies)


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
        self.last_took_ms = 0
        self.cluster: Any = Cluster()
        config = StreamsConfig.parse(
            {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
        )
        self.max_poll_records = config.max_poll_records
        consumer: Any = self.cluster
        self.timing = CommitTiming(config, consumer, consumer, clock=self.clock, recommit_s=100)

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
        self.last_took_ms = took_ms

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
    bench.task.rows = limit // (1 + COMMIT_COPIES)
    assert not bench.is_due(after_ms=1)
    bench.task.rows += 1
    assert bench.is_due(after_ms=0)
    assert not bench.is_due(after_ms=0, processed=0), "nothing was done since"


def test_a_drained_worker_begins_a_commit_each_shorter_interval() -> None:
    bench = Bench(commit_interval_min_ms=20)
    bench.commit(took_ms=3)
    for took_ms in (8, 12, 16):
        left_ms = 20 - bench.last_took_ms
        assert not bench.is_due(after_ms=left_ms - 1)
        assert bench.is_due(after_ms=2)
        bench.commit(took_ms=took_ms)


def test_a_worker_that_was_given_many_records_at_once_is_not_drained() -> None:
    """More of them are on their way, and a commit now is a record more for each of their keys."""
    bench = Bench(commit_interval_min_ms=20)
    assert not bench.is_due(after_ms=20, processed=BURST_RECORDS)
    assert bench.is_due(after_ms=0, processed=BURST_RECORDS - 1)
    assert bench.is_due(after_ms=980, processed=BURST_RECORDS), "the interval"


def test_the_first_record_after_a_pause_waits_for_no_others() -> None:
    bench = Bench(commit_interval_min_ms=20)
    assert bench.is_due(after_ms=0)
    bench.commit(took_ms=3)
    bench.clock.pass_ms(5000)
    bench.timing.nothing_to_commit()
    assert bench.is_due(after_ms=0)


def test_commits_of_a_drained_worker_take_four_fifths_of_its_time_at_most() -> None:
    bench = Bench(commit_interval_min_ms=20)
    for _ in range(2):
        bench.commit(took_ms=80)
    for _ in range(3):
        assert not bench.is_due(after_ms=19)
        assert bench.is_due(after_ms=2)
        bench.commit(took_ms=80)


def test_a_commit_that_was_slow_for_once_does_not_put_the_next_one_off() -> None:
    bench = Bench(commit_interval_min_ms=20)
    for took_ms in (100, 1600, 100, 1600):
        bench.commit(took_ms=took_ms)
        assert bench.is_due(after_ms=26)


def test_with_no_shorter_interval_commits_of_a_drained_worker_follow_by_what_one_takes() -> None:
    bench = Bench(commit_interval_min_ms=0)
    assert bench.is_due(after_ms=0)
    for _ in range(2):
        bench.commit(took_ms=12)
    assert not bench.is_due(after_ms=2)
    assert bench.is_due(after_ms=2)


def test_a_slow_commit_never_puts_one_off_longer_than_the_interval() -> None:
    bench = Bench(commit_interval_ms=100)
    for _ in range(2):
        bench.commit(took_ms=1000)
    assert not bench.is_due(after_ms=99)
    assert bench.is_due(after_ms=2)


def far_behind(**settings: Any) -> Bench:
    """A worker that has read five records, and has more than these before it."""
    bench = Bench(commit_interval_ms=100, **settings)
    bench.keep_busy()
    bench.cluster.end = 10
    return bench


def test_a_worker_that_is_far_behind_commits_for_a_fifth_of_its_time() -> None:
    bench = far_behind()
    for _ in range(2):
        bench.commit(took_ms=60)
    assert not bench.is_due(after_ms=239)
    assert bench.is_due(after_ms=2)


def test_a_worker_that_is_far_behind_commits_at_the_interval_where_commits_are_quick() -> None:
    bench = far_behind()
    for _ in range(2):
        bench.commit(took_ms=25)
    assert not bench.is_due(after_ms=99)
    assert bench.is_due(after_ms=2)


@pytest.mark.parametrize(
    ("settings", "longest_ms"),
    [
        ({}, 1000),
        ({"commit_interval_max_ms": 500}, 500),
        ({"commit_interval_max_ms": 100}, 100),
        ({"producer_transaction_timeout_ms": 2800}, 700),
    ],
    ids=["as it comes", "set", "switched off", "of a short transaction"],
)
def test_no_commit_waits_longer_than_it_may(settings: dict[str, Any], longest_ms: int) -> None:
    bench = far_behind(**settings)
    for _ in range(2):
        bench.commit(took_ms=3000)
    assert not bench.is_due(after_ms=longest_ms - 1)
    assert bench.is_due(after_ms=2)


def test_a_commit_after_every_batch_is_one_after_every_batch() -> None:
    bench = Bench(commit_interval_ms=0)
    bench.keep_busy()
    bench.cluster.end = 1000
    for _ in range(2):
        bench.commit(took_ms=60)
    assert bench.is_due(after_ms=0)


def test_the_interval_decides_where_no_more_waits_than_was_read() -> None:
    bench = far_behind()
    bench.cluster.end -= 1
    for _ in range(2):
        bench.commit(took_ms=60)
    assert bench.is_due(after_ms=101)


def test_the_interval_decides_where_a_turn_had_nothing_to_process() -> None:
    """Others may wait for the records that the commit shows them."""
    bench = far_behind()
    for _ in range(2):
        bench.commit(took_ms=60)
    assert bench.is_due(after_ms=101, processed=0)


def test_too_much_that_is_uncommitted_is_committed_by_a_worker_that_is_far_behind() -> None:
    limit = 2 << 20
    bench = far_behind(statestore_uncommitted_max_bytes=limit)
    for _ in range(2):
        bench.commit(took_ms=60)
    bench.task.rows = limit // (1 + COMMIT_COPIES) + 1
    assert bench.is_due(after_ms=101)


def test_a_poll_waits_until_the_early_commit_and_no_longer() -> None:
    bench = Bench(commit_interval_min_ms=20)
    bench.commit()
    bench.task.dirty = False
    assert bench.timing.wait_s() is None, "there is nothing to commit"
    bench.task.dirty = True
    bench.clock.pass_ms(5)
    assert bench.timing.wait_s() == pytest.approx(0.015)
    bench.clock.pass_ms(15)
    assert bench.timing.wait_s() == DRAINED_CHECK_S, "it was due, and the worker was not drained"


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
    [{"processing_guarantee": "at_least_once"}, {"commit_interval_min_ms": 1000}],
    ids=["at least once", "switched off"],
)
def test_early_commits_are_exactly_onces_alone_and_can_be_switched_off(
    settings: dict[str, Any],
) -> None:
    bench = Bench(**settings)
    assert not bench.is_due(after_ms=999)
    assert bench.timing.wait_s() is None
    assert Bench().timing.wait_s() is not None
