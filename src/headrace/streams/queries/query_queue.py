"""Answers questions in a worker's thread, from committed rows alone.

What is not committed is in the buffers of tasks, which nothing here looks at.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from headrace.state.errors import StateError
from headrace.state.memory import MemoryStore
from headrace.state.store import CommittedStore, Position
from headrace.streams.errors import StreamsError
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.global_tables import GlobalTables
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.tasks import Tasks

# What a worker is asked about the rows of one store of one of its tasks, and what it says.
#
# A question is about the rows as they lie in the store (see `headrace.state.layout`), and as little
# at a time as a worker does beside its work: some keys, or some rows of a range. Who asks makes of
# the answers what people ask for.


NO_PARTITION = -1
"""Stands for the partition of a global table, which has all."""
KEYS_MAX = 500
ROWS_MAX = 500
BYTES_MAX = 256 << 10
"""So many bytes of keys, or of rows, are in a question or an answer; one row may be larger."""


class StateQueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """Query for rows of one store of one task.

    Args:
        store: its name, or that of the family of a global table.
        sub_topology: which keeps it; None for a global table.
        keys: those whose rows are wanted; without any, how far the store is.
        start: the first key of a scan; None for the store's first.
        end: behind the last key of a scan; None for beyond the last.
    """

    store: str
    sub_topology: int | None
    partition: int
    what: Literal["get", "scan", "count"] = "get"
    keys: tuple[bytes, ...] = ()
    start: bytes | None = None
    end: bytes | None = None
    reverse: bool = False


class StateQueryResponse(msgspec.Struct, frozen=True, array_like=True):
    """Response of a worker, consistent at one moment.

    Args:
        topic_id: of the changelog; with the next three the store's position.
        values: what the first keys have, in their order; of all unless that is too much.
        rows: those of a scan.
        after: the last key that a scan looked at, to go on behind; None at the end.
        count: how many rows there are.
    """

    topic_id: str
    offset: int
    commit_id: int
    wall_ms: int
    values: tuple[bytes | None, ...] = ()
    rows: tuple[tuple[bytes, bytes], ...] = ()
    after: bytes | None = None
    count: int = 0


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """Why a worker does not say it.

    Args:
        is_elsewhere: whether the task is not this worker's.
        remaining: offsets of changelogs that are still to be read.
    """

    reason: str
    is_elsewhere: bool = False
    remaining: int | None = None


Outcome = StateQueryResponse | Refused


class UnansweredError(StreamsError):
    """A worker does not answer a question; ask again later.

    Args:
        refused: why.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


Ask = Callable[[StateQueryRequest, float], StateQueryResponse]
"""Asks one worker, and waits for so many seconds; raises `UnansweredError`."""
Workers = Callable[[], "dict[int, Ask] | None"]
"""The workers that can be asked now, by number; None where none is to run here."""


def silent(within_s: float) -> Refused:
    """What is said where nothing is."""
    return Refused(
        f"its worker did not answer within {within_s:g} s: a batch, a commit or a function takes "
        "that long, or the worker stands still; ask again later"
    )


class Awaited:
    """An answer that one thread waits for, and another brings."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._is_there = threading.Event()

    def bring(self, outcome: Outcome) -> None:
        """Have the waiting end; any thread, and only the first counts."""
        if self._outcome is None:
            self._outcome = outcome
        self._is_there.set()

    def wait(self, within_s: float) -> StateQueryResponse:
        """Wait for the answer.

        Raises:
            UnansweredError: there is none in time, or it is a refusal.
        """
        self._is_there.wait(within_s)
        outcome = self._outcome or silent(within_s)
        if isinstance(outcome, Refused):
            raise UnansweredError(outcome)
        return outcome


# Where a worker takes questions: other threads put them there, and its own answers them.
#
#     any thread:       ask ─► queue ─┐                         ┌─► answer
#     worker's thread:  poll ─► process ─► commit ─► answers some ─► poll …
#
# The worker answers between two batches, and for `TURN_S` at most, so that it goes on with its
# work.
# While it is asked, it waits less long for records, which nobody can interrupt.


WAITING_MAX = 64
TURN_S = 0.005
"""So long a worker answers at a time; what it has begun it ends."""
ASKED_S = 1.0
"""So long after a question the next one is likely."""
POLL_S = 0.005
"""How long a worker waits for records that is asked."""
_CLOSED = Refused("its worker is not at work; ask again later")
_TOO_MANY = Refused(f"{WAITING_MAX} others wait for this worker's answers; ask again later")

Answer = Callable[[StateQueryRequest], Outcome | None]
"""Answers a question in the worker's thread; None says that it is to be asked again."""


class _Waiting:
    """A question, and who waits for what is said."""

    __slots__ = ("done", "is_left", "question")

    def __init__(self, question: StateQueryRequest, done: Callable[[Outcome], None]) -> None:
        self.question = question
        self.done = done
        self.is_left = False
        """Whether nobody waits any more."""


class QueryQueue:
    """Queue of queries for a worker's memory; filled by any thread, answered by the worker.

    Args:
        monotonic_s: seconds of a clock that never goes back.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._is_open = False
        self._answered_s: float | None = None

    # -- any thread ------------------------------------------------------------------------------

    def submit(
        self, question: StateQueryRequest, done: Callable[[Outcome], None]
    ) -> _Waiting | None:
        """Have a question answered.

        Args:
            done: called with what is said, in this thread or in the worker's; not to wait.

        Returns:
            What to `leave` when nobody waits any more; None where it was refused at once.
        """
        waiting = _Waiting(question, done)
        with self._lock:
            refused = _CLOSED if not self._is_open else None
            if len(self._waiting) >= WAITING_MAX:
                refused = _TOO_MANY
            if refused is None:
                self._waiting.append(waiting)
        if refused is None:
            return waiting
        done(refused)
        return None

    def ask(self, question: StateQueryRequest, within_s: float) -> StateQueryResponse:
        """Ask, and wait for the answer.

        Raises:
            UnansweredError: there is none.
        """
        awaited = Awaited()
        waiting = self.submit(question, awaited.bring)
        try:
            return awaited.wait(within_s)
        finally:
            if waiting is not None:
                waiting.is_left = True

    # -- the worker's thread ---------------------------------------------------------------------

    def open(self) -> None:
        """Take questions."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Take none any more, and refuse those that wait."""
        with self._lock:
            self._is_open = False
            left = tuple(self._waiting)
            self._waiting.clear()
        for one in left:
            one.done(_CLOSED)

    def turn(self, answer: Answer) -> None:
        """Answer some of the questions; the first turn opens."""
        if not self._is_open:
            self.open()
        if not self._waiting:
            return
        begun_s = now_s = self._monotonic_s()
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            if waiting.is_left:
                continue
            outcome = answer(waiting.question)
            if outcome is None:
                self._waiting.append(waiting)
            else:
                waiting.done(outcome)
            now_s = self._monotonic_s()
            if now_s - begun_s >= TURN_S:
                break
        self._answered_s = now_s

    def bounded(self, wait_s: float) -> float:
        """How long a worker may wait for records, which would wait so long without questions."""
        if self._waiting:
            return 0.0
        if self._answered_s is None:
            return wait_s
        if self._monotonic_s() - self._answered_s > ASKED_S:
            self._answered_s = None
            return wait_s
        return min(wait_s, POLL_S)


_NOT_WHOLE = "its rows come from the changelog; ask again later"


class QueryHandler:
    """Worker side of the query queue: answers between two batches."""

    def __init__(
        self, desk: QueryQueue, tasks: Tasks, global_tables: GlobalTables, restorer: Restorer
    ) -> None:
        self._desk = desk
        self.bounded = desk.bounded
        self._tasks = tasks
        self._global_tables = global_tables
        self._restorer = restorer

    def turn(self) -> None:
        """Answer some of the questions that there are."""
        self._desk.turn(self.answer)

    def answer(self, question: StateQueryRequest) -> Outcome | None:
        """Answer a question; None where there is more to be done first, and it is to come again."""
        try:
            if question.sub_topology is None:
                found = self._global_tables.committed(question.store)
                return _not_here(question) if found is None else _said(question, *found)
            return self._of_task(question, question.sub_topology)
        except (StateError, KeyError) as error:
            return Refused(f"its rows cannot be read: {error}; ask again later")

    def _of_task(self, question: StateQueryRequest, sub_topology: int) -> Outcome | None:
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


def _not_here(question: StateQueryRequest) -> Refused:
    return Refused(f"this worker has no task with store {question.store!r}", is_elsewhere=True)


def _said(
    question: StateQueryRequest, rows: CommittedStore, position: Position | None
) -> Outcome | None:
    if position is None:
        position = Position("", 0, 0, 0)
    at = (position.topic_id, position.offset, position.commit_id, position.wall_ms)
    if question.what == "get":
        return StateQueryResponse(*at, values=_bounded(rows.get_many(question.keys)))
    if question.what == "count":
        return StateQueryResponse(*at, count=rows.approximate_count())
    if not isinstance(rows, MemoryStore):
        return Refused(f"store {question.store!r} is on disk, where its rows are read")
    page = rows.page(
        question.start,
        question.end,
        reverse=question.reverse,
        most=ROWS_MAX,
        most_bytes=BYTES_MAX,
    )
    return (
        None if page is None else StateQueryResponse(*at, rows=tuple(page.rows), after=page.after)
    )
