"""What the API has: parts of an application's snapshot, each under a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.streams.facts.board import Board
from headrace.streams.facts.snapshots import (
    ApplicationSnapshot,
    InputSnapshot,
    TaskSnapshot,
    WorkerSnapshot,
)
from headrace.topology.show.picture import Arrow, Box, Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """A worker, without its tasks and nodes."""

    index: int
    state: str
    pid: int | None
    restarts: int
    told_s_ago: float | None
    processed: int
    committed: int
    commits: int
    rebalances: int
    aborted: int
    tasks: int
    is_paused: bool
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAnswer:
    """An application and its workers; `told_s_ago` is the age of the oldest word in the sums."""

    application: str
    version: str
    topology: str
    tasks: int
    tasks_running: int
    lag: int
    told_s_ago: float | None
    workers: tuple[WorkerAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """A task, and who has it."""

    worker: int
    told_s_ago: float
    task: TaskSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class LagAnswer:
    """An input partition, and how far the task that reads it is behind."""

    worker: int
    task: str
    told_s_ago: float
    lag: int | None
    input: InputSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyAnswer:
    """What the topology looks like.

    Args:
        boxes: its topics, steps and stores.
        arrows: how records flow between them; `tied` are a step and its store.
        lanes: what the sub-topologies are called, by number.
        queries: whether stores may be asked for, too.
    """

    application: str
    topology: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    lanes: dict[int, str]
    queries: bool


def topology_of(board: Board, *, queries: bool = False) -> TopologyAnswer:
    """What is known of it: nothing, where whoever runs it told nothing."""
    picture = board.picture or Picture((), (), {})
    return TopologyAnswer(
        application=board.facts.application,
        topology=board.facts.topology,
        boxes=picture.boxes,
        arrows=picture.arrows,
        lanes=picture.lanes,
        queries=queries,
    )


@dataclass(frozen=True, slots=True)
class View:
    """One of the parts.

    Args:
        name: behind ``/api/``.
        answer: its type.
        of: makes it, of a snapshot and the seconds of its clock now.
    """

    name: str
    help: str
    answer: object
    of: Callable[[ApplicationSnapshot, float], object]


def _application(app: ApplicationSnapshot, now_s: float) -> ApplicationAnswer:
    tasks = app.at(now_s).tasks
    return ApplicationAnswer(
        application=app.application,
        version=app.version,
        topology=app.topology,
        tasks=len(tasks),
        tasks_running=sum(task.state == "running" for task in tasks),
        lag=sum(one.lag or 0 for one in app.inputs),
        told_s_ago=max((one.told_s_ago for one in _tasks(app, now_s)), default=None),
        workers=_workers(app, now_s),
    )


def _workers(app: ApplicationSnapshot, now_s: float) -> tuple[WorkerAnswer, ...]:
    def one(number: Callable[[WorkerSnapshot], int], facts: WorkerSnapshot | None) -> int:
        return 0 if facts is None else number(facts)

    return tuple(
        WorkerAnswer(
            index=view.index,
            state=view.state_at(now_s),
            pid=view.pid,
            restarts=view.restarts,
            told_s_ago=None if view.facts is None else round(view.facts.age_s(now_s), 3),
            processed=one(lambda facts: facts.processed, view.facts),
            committed=one(lambda facts: facts.committed, view.facts),
            commits=one(lambda facts: facts.commits, view.facts),
            rebalances=one(lambda facts: facts.rebalances, view.facts),
            aborted=one(lambda facts: facts.aborted, view.facts),
            tasks=one(lambda facts: len(facts.tasks), view.facts),
            is_paused=view.facts is not None and view.facts.is_paused,
            memory_bytes=None if view.facts is None else view.facts.memory_bytes,
        )
        for view in app.workers
    )


def _tasks(app: ApplicationSnapshot, now_s: float) -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(worker=view.index, told_s_ago=round(view.facts.age_s(now_s), 3), task=task)
        for view in app.at(now_s).workers
        if view.facts is not None and view.pid is not None
        for task in view.facts.tasks
    )


def _lag(app: ApplicationSnapshot, now_s: float) -> tuple[LagAnswer, ...]:
    return tuple(
        LagAnswer(
            worker=one.worker,
            task=one.task.id,
            told_s_ago=one.told_s_ago,
            lag=place.lag,
            input=place,
        )
        for one in _tasks(app, now_s)
        for place in one.task.inputs
    )


def _facts(app: ApplicationSnapshot, now_s: float) -> ApplicationSnapshot:
    return app.at(now_s)


VIEWS = (
    View("application", "The application, and its workers in short.", ApplicationAnswer,
         _application),
    View("workers", "The workers in short.", tuple[WorkerAnswer, ...], _workers),
    View("tasks", "The tasks, who has them, and how far each is.", tuple[TaskAnswer, ...], _tasks),
    View("lag", "How far each input partition is behind.", tuple[LagAnswer, ...], _lag),
    View("facts", "All that the workers told, each task once.", ApplicationSnapshot, _facts),
)  # fmt: skip
"""All of them."""
