"""A worker that gets tasks waits at a gate, and goes on with everything else meanwhile."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.streams.errors import BackfillOpenError, FatalClientError
from headrace.streams.kafka.clocks import Job
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.gate_watch import RECHECK_S, REPEAT_S, GateWatch
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.streams.worker.protocols import WorkerDependencies
from tests.support.topologies import key_count

TASK = TaskId(0, 0)


class Jobs:
    """Runs jobs when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []

    def __call__(self, job: Job) -> bool:
        self.waiting.append(job)
        return True

    def answer(self, number: int = -1) -> None:
        self.waiting.pop(number)()


class Cluster:
    """Says whether a backfill is open."""

    def __init__(self) -> None:
        self.is_open = False
        self.may_begin = True
        self.looks = self.passed = self.watched = 0

    def look(self) -> bool:
        self.looks += 1
        if self.is_open:
            raise BackfillOpenError("app", "bf-1")
        return self.may_begin

    def pass_on(self) -> None:
        self.passed += 1

    def watch(self) -> None:
        self.watched += 1
        if self.is_open:
            raise BackfillOpenError("app", "bf-1")


class BackwardClock(ManualClock):
    """Every clock of the machine can be put back."""

    def __init__(self) -> None:
        super().__init__(0)
        self.back_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() - self.back_s


class Gated:
    def __init__(self, *, is_waiting: bool = False) -> None:
        self.jobs, self.cluster = Jobs(), Cluster()
        self.clock, self.log = BackwardClock(), EventLog()
        self.watch = GateWatch(
            self.cluster.look,
            passed=self.cluster.pass_on,
            watch=self.cluster.watch,
            make_background=lambda: self.jobs,
            clock=self.clock,
            timeout_s=60.0,
            log=self.log,
            waiting=lambda: is_waiting,
        )

    def wait(self, seconds: float) -> bool:
        self.clock.pass_ms(int(seconds * 1000))
        return self.watch.is_passed()


def test_tasks_wait_for_an_answer_and_the_callback_does_not() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    assert gated.cluster.looks == 0
    assert not gated.watch.is_passed()
    gated.jobs.answer()
    assert gated.watch.is_passed()
    assert gated.watch.is_passed()


def test_an_open_backfill_ends_the_worker() -> None:
    gated = Gated()
    gated.cluster.is_open = True
    gated.watch.on_assignment([TASK])
    gated.jobs.answer()
    with pytest.raises(BackfillOpenError):
        gated.watch.is_passed()


def test_it_is_asked_again_after_a_time_without_tasks_alone() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    gated.jobs.answer()
    assert gated.watch.is_passed()
    gated.watch.on_assignment([TASK, TaskId(0, 1)])
    assert gated.watch.is_passed()
    gated.watch.on_assignment([])
    assert gated.watch.is_passed()
    gated.watch.on_assignment([TASK])
    assert not gated.watch.is_passed()


def test_tasks_that_may_not_begin_yet_wait_and_it_is_asked_again_soon() -> None:
    gated = Gated()
    gated.cluster.may_begin = False
    gated.watch.on_assignment([TASK])
    gated.jobs.answer()
    assert not gated.watch.is_passed()
    assert gated.jobs.waiting == []
    assert not gated.wait(RECHECK_S)
    gated.cluster.may_begin = True
    assert gated.cluster.passed == 0
    gated.jobs.answer()
    assert gated.watch.is_passed()
    assert (gated.cluster.looks, gated.cluster.passed) == (2, 1)


def test_it_is_asked_again_under_another_membership() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    gated.jobs.answer()
    assert gated.watch.is_passed()
    gated.watch.on_new_membership()
    gated.watch.on_assignment([TASK])
    assert not gated.watch.is_passed()
    gated.jobs.answer()
    assert gated.watch.is_passed()


def test_others_that_join_may_end_a_worker_whose_tasks_run() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    gated.jobs.answer()
    assert gated.watch.is_passed()
    gated.watch.on_assignment([TASK, TaskId(0, 1)])
    gated.cluster.is_open = True
    assert gated.watch.is_passed()
    gated.jobs.answer()
    assert (gated.cluster.looks, gated.cluster.watched) == (1, 1)
    with pytest.raises(BackfillOpenError):
        gated.watch.is_passed()


def test_an_answer_from_before_the_assignment_does_not_count() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    gated.watch.on_assignment([])
    gated.watch.on_assignment([TASK])
    gated.jobs.answer(0)
    assert not gated.watch.is_passed()
    gated.cluster.is_open = True
    gated.jobs.answer()
    with pytest.raises(BackfillOpenError):
        gated.watch.is_passed()


def test_a_question_that_hangs_is_asked_once_more_and_said() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    assert not gated.wait(REPEAT_S - 1)
    assert len(gated.jobs.waiting) == 1
    assert not gated.wait(1)
    assert len(gated.jobs.waiting) == 2
    assert [event["event"] for event in gated.log.events] == ["start_waits_for_backfill"]
    gated.jobs.answer()
    assert gated.watch.is_passed()


def test_a_clock_that_is_put_back_costs_no_more_time() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    assert not gated.wait(REPEAT_S - 1)
    gated.clock.back_s = 3600.0
    assert not gated.watch.is_passed()
    assert not gated.wait(1)
    assert len(gated.jobs.waiting) == 2


def test_it_does_not_wait_for_ever() -> None:
    gated = Gated()
    gated.watch.on_assignment([TASK])
    with pytest.raises(FatalClientError, match=r"whether a backfill is open .* \(for 60 s\)"):
        gated.wait(60)


def test_it_waits_for_brokers_that_cannot_be_reached() -> None:
    gated = Gated(is_waiting=True)
    gated.watch.on_assignment([TASK])
    assert not gated.wait(600)


def test_a_worker_begins_no_task_before_and_goes_on_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gated = Gated()
    at_the_gate = partial(WorkerDependencies, gate=gated.watch)
    monkeypatch.setattr("headrace.streams.testing.memory_worker.WorkerDependencies", at_the_gate)
    driver = TopologyTestDriver(key_count(), {"application.id": "app"})
    driver.input("in").send("a", "x")
    driver.run()
    assert driver.processed == 0
    assert driver.committed_offsets("in") == {}
    gated.jobs.answer()
    driver.run()
    assert driver.processed == 1
