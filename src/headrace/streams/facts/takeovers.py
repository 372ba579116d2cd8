"""Leaves out tasks that a worker told of and another one has by now.

A worker that is frozen or cut off keeps its last word, with tasks that the group has given to
others since. Snapshots of one host share a clock, so who began with a task later has it.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.streams.facts.snapshots import (
    ApplicationSnapshot,
    TaskSnapshot,
    WorkerSnapshot,
    WorkerView,
)


def without_taken(app: ApplicationSnapshot) -> ApplicationSnapshot:
    """The application with each task at one worker: at the one that began with it last."""
    began: dict[str, tuple[float, float]] = {}
    is_twice = False
    for facts in _here(app):
        for task in facts.tasks:
            known = began.get(task.id)
            is_twice = is_twice or known is not None
            began[task.id] = max(_began(facts, task), known or (float("-inf"), 0.0))
    if not is_twice:
        return app
    return replace(app, workers=tuple(_left(view, began) for view in app.workers))


def _here(app: ApplicationSnapshot) -> list[WorkerSnapshot]:
    return [view.facts for view in app.workers if view.facts and view.pid is not None]


def _began(facts: WorkerSnapshot, task: TaskSnapshot) -> tuple[float, float]:
    """When the task came into its state; of two at once, what was told later holds."""
    return facts.at_s - task.state_s, facts.at_s


def _left(view: WorkerView, began: dict[str, tuple[float, float]]) -> WorkerView:
    facts = view.facts
    if facts is None or view.pid is None:
        return view
    tasks = tuple(task for task in facts.tasks if _began(facts, task) == began[task.id])
    return replace(view, facts=replace(facts, tasks=tasks))
