"""Answers questions in a worker's thread, from committed rows alone.

What is not committed is in the buffers of tasks, which nothing here looks at.
"""

from __future__ import annotations

from headrace.state.errors import StateError
from headrace.state.memory import MemoryStore
from headrace.state.store import CommittedStore, Position
from headrace.streams.global_tables.global_tables import GlobalTables
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.questions.desk import Desk
from headrace.streams.questions.question import (
    BYTES_MAX,
    ROWS_MAX,
    Outcome,
    Question,
    Refused,
    Told,
)
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.tasks import Tasks

_NOT_WHOLE = "its rows come from the changelog; ask again later"


class Answering:
    """See the module."""

    def __init__(
        self, desk: Desk, tasks: Tasks, global_tables: GlobalTables, restorer: Restorer
    ) -> None:
        self._desk = desk
        self.bounded = desk.bounded
        self._tasks = tasks
        self._global_tables = global_tables
        self._restorer = restorer

    def turn(self) -> None:
        """Answer some of the questions that there are."""
        self._desk.turn(self.answer)

    def answer(self, question: Question) -> Outcome | None:
        """Answer a question; None where there is more to be done first, and it is to come again."""
        try:
            if question.sub_topology is None:
                found = self._global_tables.committed(question.store)
                return _not_here(question) if found is None else _said(question, *found)
            return self._of_task(question, question.sub_topology)
        except (StateError, KeyError) as error:
            return Refused(f"its rows cannot be read: {error}; ask again later")

    def _of_task(self, question: Question, sub_topology: int) -> Outcome | None:
        task_id = TaskId(sub_topology, question.partition)
        state, task = self._tasks.states().get(task_id, ("", None))
        if not state:
            return _not_here(question)
        if task is None or state != "running":
            remaining = self._restorer.remaining().get((task_id, question.store))
            return Refused(f"the task is {state}; ask again later", remaining=remaining)
        home = task.state
        return _said(question, home.store(question.store), home.position(question.store))


def _bounded(values: list[bytes | None]) -> tuple[bytes | None, ...]:
    """The first of some values: as many as an answer holds, and one at least."""
    size = 0
    for number, value in enumerate(values, 1):
        size += len(value or b"")
        if size >= BYTES_MAX:
            return tuple(values[:number])
    return tuple(values)


def _not_here(question: Question) -> Refused:
    return Refused(f"this worker has no task with store {question.store!r}", is_elsewhere=True)


def _said(question: Question, rows: CommittedStore, position: Position | None) -> Outcome | None:
    if position is None:
        position = Position("", 0, 0, 0)
    at = (position.topic_id, position.offset, position.commit_id, position.wall_ms)
    if question.what == "get":
        return Told(*at, values=_bounded(rows.get_many(question.keys)))
    if question.what == "count":
        return Told(*at, count=rows.approximate_count())
    if not isinstance(rows, MemoryStore):
        return Refused(f"store {question.store!r} is on disk, where its rows are read")
    page = rows.page(
        question.start,
        question.end,
        reverse=question.reverse,
        most=ROWS_MAX,
        most_bytes=BYTES_MAX,
    )
    return None if page is None else Told(*at, rows=tuple(page.rows), after=page.after)
