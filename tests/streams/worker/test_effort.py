"""Which work is in vain for ever, and which is not: told by the time that it takes itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.task_failures import InputRange
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.streams.worker.progress_guard import QUICK_PUNCTUATIONS, ProgressGuard
from headrace.topology.context.task_context import LongCall, TaskContext

IN = TopicPartition("in", 0)
SETTINGS = {
    "application.id": "a",
    "bootstrap.servers": "b:1",
    "processing.guarantee": "exactly_once_v2",
}


@dataclass
class Producer:
    """As much of one as is asked."""

    waited_s: float = 0.0
    in_flight: int = 0


@dataclass
class Task:
    """As much of one as is asked: what it has done since it began."""

    begin: int = 0
    done: int = 0
    id: TaskId = field(default_factory=lambda: TaskId(0, 0))
    moved: bool = True
    context: TaskContext = field(default_factory=TaskContext)

    def input_range(self) -> InputRange:
        ranges = {IN: range(self.begin, self.begin + self.done)} if self.done else {}
        return InputRange(str(self.id), ranges, {}, (), {IN: self.begin})


@dataclass
class Bench:
    clock: ManualClock = field(default_factory=lambda: ManualClock(0))
    log: EventLog = field(default_factory=EventLog)
    producer: Any = field(default_factory=Producer)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = StreamsConfig.parse({**SETTINGS, **self.settings})
        self.effort = ProgressGuard(config, clock=self.clock, log=self.log)

    def work(self, seconds: float, *, waits: float = 0.0) -> None:
        with self.effort.working(self.producer):
            self.clock.sleep(seconds + waits)
            self.producer.waited_s += waits

    def void(self, *tasks: Any) -> bool:
        return self.effort.on_abort(tasks, self.producer)

    def commit(self, *tasks: Any) -> None:
        done = sum(task.done for task in tasks)
        self.effort.committing(self.producer, tasks)
        self.effort.committed(self.effort.retry_budget(tasks), done)


def test_an_outage_is_not_the_records_doing_however_often_it_voids_them() -> None:
    bench = Bench()
    for _ in range(20):
        bench.work(9.0, waits=600.0)
        assert not bench.void(Task(done=1))
    events = [event["event"] for event in bench.log.events]
    assert events == ["commits_failing"] * 3, "after 4, 8 and 16 aborts"


def test_records_that_take_too_long_alone_are_named() -> None:
    bench = Bench()
    bench.work(11)
    assert bench.void(Task(7, done=1))
    bench.work(12)
    with pytest.raises(RecordError, match=r"offsets in-0 7 took 12\.0 s .* allows 10 s: it was"):
        bench.void(Task(7, done=1))


def test_a_process_that_was_frozen_now_and_then_goes_on() -> None:
    bench = Bench()
    for offset in range(10):
        bench.work(60)
        assert bench.void(Task(offset, done=1))
        bench.work(0.1)
        bench.commit(Task(offset, done=1))


def test_what_another_task_commits_forgives_nothing() -> None:
    bench = Bench()
    slow, other = Task(7, done=1), Task(0, done=1, id=TaskId(0, 1))
    bench.work(11)
    bench.void(slow)
    bench.work(0.1)
    bench.commit(other)
    bench.work(11)
    with pytest.raises(RecordError):
        bench.void(slow)


def test_where_nobody_knows_which_record_it_is_four_times_are_enough() -> None:
    """Markers of transactions have offsets, so one record may look like two."""
    bench = Bench()
    for _ in range(3):
        bench.work(11)
        assert bench.void(Task(7, done=2))
    bench.work(11)
    with pytest.raises(RecordError, match=r"offsets in-0 7 to 8 .* it was done 4 times") as caught:
        bench.void(Task(7, done=2))
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 0, 7)


def test_a_commit_of_what_has_only_begun_forgives_nothing() -> None:
    bench = Bench()
    bench.work(11)
    bench.void(Task(7, done=1))
    bench.commit(Task(7, moved=False))
    bench.work(11)
    with pytest.raises(RecordError):
        bench.void(Task(7, done=1))


def test_a_punctuator_has_no_record() -> None:
    bench = Bench()
    bench.work(11)
    bench.void(Task())
    bench.work(11)
    with pytest.raises(ConfigError, match=r"a punctuator, .* of task 0_0 took 11"):
        bench.void(Task())


def test_an_init_that_outlasts_the_time_between_polls_has_not_even_a_task() -> None:
    bench = Bench()
    for _ in range(2):
        with bench.effort.preparing():
            bench.clock.sleep(301)
        bench.effort.polled()
        assert not bench.void(), "a poll came in time"
    with bench.effort.preparing():
        bench.clock.sleep(301)
    assert bench.void()
    with bench.effort.preparing():
        bench.clock.sleep(301)
    with pytest.raises(ConfigError, match=r"the init of a processor, took 301.0 s .* 300 s"):
        bench.void()


def test_after_two_times_each_record_is_committed_on_its_own() -> None:
    bench = Bench()
    for _ in range(2):
        assert not bench.effort.isolates_records
        bench.work(11)
        bench.void(Task(0, done=3))
    for offset in range(3):
        assert bench.effort.isolates_records
        assert bench.effort.must_commit
        bench.commit(Task(offset, done=1))
    assert not bench.effort.isolates_records


def test_a_quarter_of_the_time_ends_a_turn_and_the_others_are_next() -> None:
    bench = Bench()
    tasks: Any = [Task(id=TaskId(0, n)) for n in range(4)]
    assert bench.effort.waiting_first(tasks) == tasks
    assert not bench.effort.ends_turn(tasks[0])
    bench.work(2.5)
    assert bench.effort.ends_turn(tasks[1])
    assert bench.effort.waiting_first(tasks) == [tasks[2], tasks[3], tasks[0], tasks[1]]
    assert bench.effort.waiting_first(tasks) == tasks


def test_at_least_once_knows_no_time_of_a_transaction() -> None:
    bench = Bench(settings={"processing.guarantee": "at_least_once"})
    bench.work(299)
    assert not bench.void(Task(done=1))
    bench.work(299)
    bench.effort.polled()
    bench.work(2)
    assert not bench.void(Task(done=1))
    bench.work(301)
    assert bench.void(Task(done=1))


def test_the_time_of_a_transaction_ends_with_its_commit() -> None:
    bench = Bench()
    for offset in range(4):
        bench.work(2.4)
        assert not bench.effort.must_commit, "less than a quarter since the last commit"
        bench.commit(Task(offset, done=1))
    bench.work(9)
    assert not bench.void(Task(4, done=1))


def test_aborts_are_counted_from_the_last_commit_on() -> None:
    bench = Bench()
    for offset in range(5):
        for _ in range(3):
            bench.void(Task(offset, done=1))
        bench.commit(Task(offset, done=1))
    assert bench.log.events == []


def test_a_quarter_of_the_time_between_polls_ends_a_turn() -> None:
    """Its commits do not help, as the group waits for a poll."""
    bench = Bench(settings={"consumer.max.poll.interval.ms": 8_000})
    bench.work(1.9)
    bench.commit(Task(0, done=1))
    assert not bench.effort.must_commit
    bench.work(0.1)
    assert bench.effort.must_commit
    bench.effort.polled()
    assert not bench.effort.must_commit


def test_a_commit_without_a_record_is_one_of_those_on_their_own() -> None:
    """A punctuator was in vain: there is no record whose commit could end the care."""
    bench = Bench()
    for done in (0, 2):
        bench.work(11)
        bench.void(Task(done=done))
    for _ in range(2):
        assert bench.effort.isolates_records
        bench.commit(Task())
    assert not bench.effort.isolates_records


def test_what_was_committed_in_the_end_is_forgiven_though_no_offset_moved() -> None:
    """A punctuator's process that is frozen now and then, while no record comes."""
    bench = Bench()
    for _ in range(5):
        bench.work(60)
        assert bench.void(Task())
        bench.work(0.1)
        bench.commit(Task())


def punctuated(seconds: float, number: int = 0) -> Task:
    """A task whose punctuator by wall clock took so long since the last commit."""
    call = LongCall("punctuator by wall clock", "node", int(seconds * 1000))
    return Task(number, context=TaskContext(longest_call=call))


def test_a_slow_punctuator_is_named_whatever_was_committed_between_its_calls() -> None:
    bench = Bench()
    for times in (1, 2, 3):
        bench.commit(Task(times, done=5))
        bench.work(12)
        slow = punctuated(12, times)
        if times < 3:
            assert not bench.void(slow), "no record is at fault"
            assert bench.effort.has_slow_punctuator(slow)  # type: ignore[arg-type]
            assert not bench.effort.isolates_records
    with pytest.raises(ConfigError, match=r"12.0 s, .* 10 s: .* 3 times .*node node, task 0_0"):
        bench.void(slow)
    told = [event["times"] for event in bench.log.events]
    assert told == [1, 2, 3]


def test_a_punctuator_that_is_committed_is_not_too_slow() -> None:
    bench = Bench()
    for _ in range(5):
        for _ in range(2):
            bench.work(12)
            bench.void(punctuated(12))
        bench.work(9)
        bench.commit(punctuated(9))


def test_a_punctuator_that_is_quick_again_has_no_commit_before_it() -> None:
    bench = Bench()
    task: Any = punctuated(2)
    bench.commit(task)
    assert bench.effort.has_slow_punctuator(task)
    for _ in range(QUICK_PUNCTUATIONS):
        bench.commit(punctuated(0.01))
    assert not bench.effort.has_slow_punctuator(task)


def test_a_transaction_takes_fewer_records_after_one_that_brokers_did_not_take_in_time() -> None:
    bench = Bench()
    bench.effort.add_records(100)
    bench.producer.in_flight = 200
    bench.effort.committing(bench.producer, [])
    bench.clock.sleep(10)
    bench.producer.in_flight = 140
    bench.void(Task(done=100))
    assert bench.effort.max_records == 2, "30 were taken in 10 seconds, and the target is a quarter"
    bench.effort.add_records(1)
    assert not bench.effort.must_commit
    bench.effort.add_records(1)
    assert bench.effort.must_commit


def test_at_least_once_is_not_bounded_until_a_flush_times_out() -> None:
    bench = Bench(settings={"processing.guarantee": "at_least_once"})
    bench.effort.add_records(10_000_000)
    assert not bench.effort.must_commit
    bench.effort.committing(bench.producer, [])
    bench.clock.sleep(300)
    bench.void(Task(done=1))
    assert bench.effort.max_records == 10_000_000 // 3 // 4
