"""Live, ready, started: what each asks for, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams_web.pages import OLD_S, STUCK_S, live, ready, startup
from tests.support.snapshots import application_snapshot, input_snapshot, task_snapshot

NOW_S = 100.0
HALF_A_MINUTE = timedelta(seconds=30)


def health(**others: Any) -> HealthSnapshot:
    known: dict[str, Any] = {
        "snapshot": application_snapshot(workers=2, tasks=2),
        "turned_s": NOW_S,
        "is_loaded": True,
        "has_failed": False,
    }
    return HealthSnapshot(**(known | others))


def of_tasks(*tasks: Any, state: str = "running", **others: Any) -> HealthSnapshot:
    snapshot = application_snapshot(workers=1, **others)
    (view,) = snapshot.workers
    assert view.snapshot is not None
    told = replace(view.snapshot, tasks=tasks)
    return health(snapshot=replace(snapshot, workers=(replace(view, snapshot=told, state=state),)))


@pytest.mark.parametrize(
    "state", ["starting", "connecting", "rebalancing", "running", "paused", "crashed", "waiting"]
)
def test_an_application_lives_in_every_state(state: str) -> None:
    """A slow restore, a storm of rebalances and brokers that are away are no reason to kill it."""
    restoring = task_snapshot(state="restoring", state_s=600.0, inputs=())
    found = of_tasks(restoring, state=state)
    assert live(found, NOW_S).is_well
    assert startup(found).is_well


def test_it_lives_while_it_is_loaded_and_while_workers_are_silent() -> None:
    snapshot = application_snapshot(workers=2)
    silent = tuple(
        replace(view, snapshot=None, pid=None, state="waiting") for view in snapshot.workers
    )
    found = health(snapshot=replace(snapshot, workers=silent), is_loaded=False)
    assert live(found, NOW_S).is_well
    assert not startup(found).is_well


def test_a_worker_that_has_failed_ends_it() -> None:
    assert "not restarted" in live(health(has_failed=True), NOW_S).reasons[0]
    stopped = live(health(has_failed=True, why="the application was shut down"), NOW_S)
    assert stopped.reasons == ("the application was shut down. See the log",)


def test_a_loop_that_does_not_turn_ends_it() -> None:
    assert live(health(), NOW_S + STUCK_S).is_well
    assert "has not run for 31 s" in live(health(), NOW_S + STUCK_S + 1).reasons[0]


def test_it_is_ready_when_all_tasks_run() -> None:
    assert ready(health(), NOW_S).is_well
    found = ready(of_tasks(task_snapshot(0), task_snapshot(1, state="restoring")), NOW_S)
    assert found.reasons == ("worker 0 is running; not running: 0_1",)
    assert found.progress == [
        {"worker": 0, "state": "running", "tasks": 2, "running": 1, "restore_remaining": 0}
    ]


def test_a_worker_without_tasks_waits_to_take_over() -> None:
    snapshot = application_snapshot(workers=2)
    spare = snapshot.workers[1]
    assert spare.snapshot is not None
    spare = replace(spare, state="rebalancing", snapshot=replace(spare.snapshot, tasks=()))
    assert ready(
        health(snapshot=replace(snapshot, workers=(snapshot.workers[0], spare))), NOW_S
    ).is_well
    found = ready(health(snapshot=replace(snapshot, workers=(spare,))), NOW_S)
    assert found.reasons == ("no worker has a task",)


@pytest.mark.parametrize("within", [None, HALF_A_MINUTE])
def test_while_brokers_are_away_that_is_what_is_said(within: timedelta | None) -> None:
    said = ("worker 0 is connecting: brokers are not reached",)
    assert ready(of_tasks(state="connecting"), NOW_S, within).reasons == said
    assert ready(of_tasks(task_snapshot(), state="connecting"), NOW_S).reasons == said


def test_a_paused_worker_is_not_ready() -> None:
    found = of_tasks(task_snapshot(), state="paused", is_paused=True)
    assert ready(found, NOW_S).reasons == ("worker 0 is paused",)
    assert ready(found, NOW_S, HALF_A_MINUTE).reasons == ("worker 0 is paused",)


@pytest.mark.parametrize("within", [None, HALF_A_MINUTE])
def test_a_task_that_cannot_commit_is_not_ready(within: timedelta | None) -> None:
    inputs = (input_snapshot(behind_ms=0),)
    stalled = task_snapshot(0, stalled_s=301.0, inputs=inputs)
    found = ready(of_tasks(stalled, task_snapshot(1, inputs=inputs)), NOW_S + 2, within)
    assert found.reasons == ("worker 0: 0_0 has committed nothing for 303 s",)


def test_a_worker_that_crashed_or_is_silent_is_not_ready() -> None:
    snapshot = application_snapshot(workers=1)
    gone = replace(snapshot.workers[0], pid=None, state="killed by SIGKILL")
    found = ready(health(snapshot=replace(snapshot, workers=(gone,))), NOW_S)
    assert found.reasons[0] == "worker 0 is killed by SIGKILL"
    assert ready(health(), NOW_S + OLD_S).is_well
    silent = ready(health(), NOW_S + OLD_S + 1)
    assert silent.reasons == tuple(f"worker {n} has not reported for 11 s" for n in (0, 1))
    assert {(one["state"], one["running"]) for one in silent.progress} == {("unresponsive", 0)}


def test_within_a_span_a_worker_with_tasks_may_be_silent_for_no_longer() -> None:
    """It says that nothing is behind, and that was so when it said it."""
    found = of_tasks(task_snapshot(0, inputs=(input_snapshot(behind_ms=0),)))
    span = timedelta(seconds=8)
    assert ready(found, NOW_S + 8, span).is_well
    assert ready(found, NOW_S + 9, span).reasons == ("worker 0 has not reported for 9 s",)


def test_within_a_long_span_a_worker_is_silent_for_no_longer_than_in_none() -> None:
    assert ready(health(), NOW_S + OLD_S, HALF_A_MINUTE).is_well
    assert not ready(health(), NOW_S + OLD_S + 1, HALF_A_MINUTE).is_well


@pytest.mark.parametrize("within", [None, HALF_A_MINUTE])
def test_a_silent_worker_is_no_reason_once_others_have_all_its_tasks(
    within: timedelta | None,
) -> None:
    frozen = application_snapshot(workers=2)
    first, second = frozen.workers
    assert second.snapshot is not None
    took = tuple(task_snapshot(n, state_s=5.0) for n in (0, 1))
    of_both = replace(second.snapshot, tasks=took, at_s=NOW_S + 60)
    others = replace(frozen, workers=(first, replace(second, snapshot=of_both)))
    assert ready(health(snapshot=others), NOW_S + 60, within).is_well
    of_one = replace(second.snapshot, tasks=took[1:], at_s=NOW_S + 60)
    others = replace(frozen, workers=(first, replace(second, snapshot=of_one)))
    found = ready(health(snapshot=others), NOW_S + 60, within)
    assert found.reasons == ("worker 0 has not reported for 60 s",)


def test_a_silent_worker_that_had_no_tasks_may_have_been_given_some_since() -> None:
    snapshot = application_snapshot(workers=2)
    first, spare = snapshot.workers
    assert first.snapshot is not None
    assert spare.snapshot is not None
    spare = replace(spare, snapshot=replace(spare.snapshot, tasks=()))
    first = replace(first, snapshot=replace(first.snapshot, at_s=NOW_S + 60))
    found = ready(health(snapshot=replace(snapshot, workers=(first, spare))), NOW_S + 60)
    assert found.reasons == ("worker 1 has not reported for 60 s",)


def test_within_a_span_a_task_may_move_and_an_input_be_behind() -> None:
    moving = task_snapshot(1, state="waiting", state_s=29.0, inputs=())
    near = task_snapshot(0, inputs=(input_snapshot(behind_ms=29_000),))
    found = of_tasks(near, moving, state="rebalancing")
    assert not ready(found, NOW_S).is_well
    assert ready(found, NOW_S, HALF_A_MINUTE).is_well
    # What was so two seconds ago may be worse by now.
    assert ready(found, NOW_S + 2, HALF_A_MINUTE).reasons == (
        "worker 0: 0_1 is waiting for 31 s",
        "worker 0: orders-0 is 31 s behind",
    )


def test_a_span_begins_when_a_task_ran_last_and_not_with_what_it_waits_for_now() -> None:
    restoring = task_snapshot(1, state="restoring", state_s=3.0, unready_s=29.0, inputs=())
    assert ready(of_tasks(restoring), NOW_S, HALF_A_MINUTE).is_well
    assert not ready(of_tasks(restoring), NOW_S).is_well
    later = ready(of_tasks(restoring), NOW_S + 2, HALF_A_MINUTE)
    assert later.reasons == ("worker 0: 0_1 is restoring, and has not run for 31 s",)


def test_an_input_that_is_far_behind_is_not_within_a_span_though_its_task_runs() -> None:
    found = of_tasks(task_snapshot(0, inputs=(input_snapshot(behind_ms=600_000),)))
    assert ready(found, NOW_S).is_well
    assert ready(found, NOW_S, HALF_A_MINUTE).reasons == ("worker 0: orders-0 is 600 s behind",)
