"""A task that two workers told of is the one's that began with it later."""

from __future__ import annotations

from dataclasses import replace

from headrace.streams.metrics.snapshots import ApplicationSnapshot, without_taken
from tests.support.snapshots import application_snapshot, task_snapshot, worker_snapshot


def told(*workers: tuple[float, dict[int, float]]) -> ApplicationSnapshot:
    """Of each worker when it told, and since when it has which tasks."""
    app = application_snapshot(workers=len(workers))
    views = []
    for view, (at_s, began) in zip(app.workers, workers, strict=True):
        tasks = tuple(task_snapshot(n, state_s=at_s - since) for n, since in began.items())
        views.append(replace(view, snapshot=replace(worker_snapshot(at_s=at_s), tasks=tasks)))
    return replace(app, workers=tuple(views))


def owners(app: ApplicationSnapshot) -> list[list[str]]:
    return [
        [task.id for task in view.snapshot.tasks] if view.snapshot else [] for view in app.workers
    ]


def test_what_a_frozen_worker_told_of_is_the_others_that_took_it() -> None:
    app = told((100.0, {0: 10.0, 1: 10.0}), (115.0, {0: 110.0, 2: 10.0}), (115.5, {1: 110.5}))
    assert owners(without_taken(app)) == [[], ["0_0", "0_2"], ["0_1"]]
    assert [task.id for task in without_taken(app).tasks] == ["0_0", "0_1", "0_2"]


def test_one_that_wakes_and_has_not_noticed_yet_gets_nothing_back() -> None:
    """What it says is the newest, and it began with its tasks before the others."""
    app = told((130.0, {0: 10.0}), (129.5, {0: 110.0}))
    assert owners(without_taken(app)) == [[], ["0_0"]]


def test_of_two_that_began_at_once_the_later_word_holds() -> None:
    app = told((100.0, {0: 50.0}), (101.0, {0: 50.0}))
    assert owners(without_taken(app)) == [[], ["0_0"]]


def test_what_a_process_told_that_has_ended_takes_nothing_from_others() -> None:
    app = told((100.0, {0: 10.0}), (120.0, {0: 110.0}))
    ended = replace(app.workers[1], pid=None, state="killed by SIGKILL")
    app = replace(app, workers=(app.workers[0], ended))
    assert owners(without_taken(app))[0] == ["0_0"]


def test_nothing_is_changed_where_each_task_is_told_of_once() -> None:
    app = application_snapshot(workers=3, tasks=4)
    assert without_taken(app) is app
