"""Whether an application lives, is ready, has started: decided from a board, for probes.

    live      the loop that looks after the workers turns, and no worker is given up
    ready     all tasks process records, or did so as short ago as one is asked for
    startup   the application was loaded, and its settings are right

None of them asks for more than it has to. An application that restores for ten minutes, waits for
its brokers or is rebalanced lives all the time: whoever killed it for that would have it begin
again, and wait longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from headrace.streams.facts.board import Board
from headrace.streams.facts.snapshots import (
    SILENT_S,
    ApplicationSnapshot,
    TaskSnapshot,
    WorkerView,
)
from headrace.streams.facts.takeovers import without_taken

STUCK_S = 30.0
"""A loop that turns ten times a second has stopped to, if it has not for so long."""
OLD_S = SILENT_S
"""What a worker told so long ago says nothing of how it is now."""
_AWAY = "connecting"


@dataclass(frozen=True, slots=True)
class Health:
    """An answer to a probe.

    Args:
        reasons: why not, in words; empty where all is well.
        progress: how far each worker is.
    """

    reasons: tuple[str, ...] = ()
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether the answer is yes."""
        return not self.reasons


def live(board: Board, now_s: float) -> Health:
    """Whether to leave it alone: what fails this is to be killed and started again."""
    reasons = []
    if board.is_given_up:
        reasons.append(f"{board.why}; the log says more")
    stuck_s = now_s - board.turned_s
    if stuck_s > STUCK_S:
        reasons.append(f"the supervisor's loop has not turned for {stuck_s:.0f} s")
    return Health(tuple(reasons))


def startup(board: Board) -> Health:
    """Whether the application was loaded."""
    if board.is_loaded:
        return Health()
    return Health(("the application is not loaded yet",), _progress(board.facts))


def ready(board: Board, now_s: float, within: timedelta | None = None) -> Health:
    """Whether results are what they are to be: all tasks run, and keep up.

    Args:
        within: results may be as old as this: each task runs or did so no longer ago, whatever it
            has waited for since, or has come to its worker no longer ago; no input is further
            behind, and no worker silent for longer. None asks that all tasks run, and not how far
            behind they are. What is not at work at all, such as a worker that is started again, is
            connecting or is paused, is not ready in either case.
    """
    reasons = [] if board.is_loaded else ["the application is not loaded yet"]
    left = without_taken(board.facts)
    for view, told in zip(left.workers, board.facts.workers, strict=True):
        if not _is_taken(view, told):
            reasons += _of_worker(view, now_s, within)
    if not reasons and not board.facts.tasks:
        reasons.append("no worker has a task")  # it may have had some, so not yet or any more
    return Health(tuple(reasons), _progress(left.at(now_s)) if reasons else [])


def _of_worker(view: WorkerView, now_s: float, within: timedelta | None) -> list[str]:
    name, facts = f"worker {view.index}", view.facts
    if view.pid is not None and view.state == _AWAY:
        return [f"{name} is {_AWAY}: brokers are not reached"]
    if facts is None or view.pid is None:
        return [f"{name} is {view.state}"]
    age_s = facts.age_s(now_s)
    if age_s > (OLD_S if within is None else min(OLD_S, within.total_seconds())):
        return [f"{name} has told nothing for {age_s:.0f} s"]
    if facts.is_paused:
        return [f"{name} is paused"]
    if within is None:
        # One that the group gave nothing to is ready to take over.
        is_well = all(task.state == "running" for task in facts.tasks)
        return [] if is_well else [f"{name} is {view.state}{_waiting(facts.tasks)}"]
    limit_s = within.total_seconds() - age_s
    late = [
        f"{name}: {task.id} is {task.state}{_for_how_long(task, age_s)}"
        for task in facts.tasks
        if task.state != "running" and max(task.state_s, task.unready_s) > limit_s
    ]
    late += [
        f"{name}: {one.topic}-{one.partition} is {one.behind_ms / 1000 + age_s:.0f} s behind"
        for task in facts.tasks
        for one in task.inputs
        if one.behind_ms and one.behind_ms / 1000 > limit_s
    ]
    return late


def _for_how_long(task: TaskSnapshot, age_s: float) -> str:
    if task.unready_s > task.state_s:
        return f", and has not run for {task.unready_s + age_s:.0f} s"
    return f" for {task.state_s + age_s:.0f} s"


def _is_taken(left: WorkerView, told: WorkerView) -> bool:
    """Whether others have all the tasks that a worker told of, so that nothing waits for it."""
    if left.facts is None or told.facts is None:
        return False
    return bool(told.facts.tasks) and not left.facts.tasks


def _waiting(tasks: tuple[TaskSnapshot, ...]) -> str:
    waiting = [task.id for task in tasks if task.state != "running"]
    return f"; not running: {', '.join(waiting[:5])}" if waiting else ""


def _progress(app: ApplicationSnapshot) -> list[dict[str, Any]]:
    return [
        {
            "worker": view.index,
            "state": view.state,
            "tasks": len(view.facts.tasks) if view.facts else 0,
            "running": sum(t.state == "running" for t in view.facts.tasks) if view.facts else 0,
            "restore_remaining": sum(
                store.restore_remaining for task in view.facts.tasks for store in task.stores
            )
            if view.facts
            else 0,
        }
        for view in app.workers
    ]
