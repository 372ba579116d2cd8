"""Reports say how a worker is doing, and never hold it up."""

from __future__ import annotations

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.supervisor.worker_reports import Activity, Status


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_activity_counts_tasks_commits_and_their_age() -> None:
    clock = Clock()
    activity = Activity(clock)
    assert activity.status("created", 0) == Status("created", 0, 0, 0, 0, 0, None, 100.0)
    activity.on_assignment([TaskId(0, 1), TaskId(1, 1)])
    activity.on_commit([TaskId(0, 1)], 5)
    clock.now_s += 2.5
    assert activity.status("running", 9) == Status("running", 2, 0, 0, 9, 1, 2.5, 102.5)


def test_activity_adds_up_the_restores_under_way() -> None:
    activity = Activity(Clock())
    one, other = TopicPartition("changelog", 0), TopicPartition("changelog", 1)
    activity.on_assignment([TaskId(0, 0), TaskId(0, 1)])
    activity.on_restore_start(one, "store", 100, 300)
    activity.on_restore_start(other, "store", 0, 50)
    activity.on_batch_restored(one, "store", 220, 7)
    assert _restores(activity) == (120, 250)
    activity.on_batch_restored(one, "store", 999, 7)
    assert _restores(activity) == (200, 250)
    activity.on_restore_end(one, "store", 14)
    assert _restores(activity) == (0, 50)


def test_restores_of_tasks_that_left_do_not_stay() -> None:
    activity = Activity(Clock())
    activity.on_restore_start(TopicPartition("changelog", 0), "store", 0, 10)
    activity.on_restore_start(TopicPartition("changelog", 1), "store", 0, 10)
    activity.on_assignment([TaskId(0, 1)])
    assert _restores(activity) == (0, 10)
    activity.on_running()
    assert _restores(activity) == (0, 0)
    activity.on_batch_restored(TopicPartition("changelog", 1), "store", 5, 1)
    assert _restores(activity) == (0, 0)


def _restores(activity: Activity) -> tuple[int, int]:
    status = activity.status("", 0)
    return status.restored, status.to_restore
