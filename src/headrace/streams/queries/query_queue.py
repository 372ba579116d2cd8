"""Queue of state queries, which a worker answers in its thread from committed rows only.

Uncommitted rows are in the buffers of tasks, which are not read here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
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

# Requests and responses about the rows of one store of one task.
#
# A request is about rows in their stored form (see `headrace.state.layout`), and small enough for a
# worker to answer between batches: some keys, or some rows of a range. The caller decodes the
# responses.


NO_PARTITION = -1
"""Partition number of a global table, which contains all partitions."""
KEYS_MAX = 500
ROWS_MAX = 500
BYTES_MAX = 256 << 10
"""Maximum bytes of keys or rows in a request or response; a single row may be larger."""


class StateQueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """Query for rows of a task's store.

    Args:
        store: its name, or the column family of a global table.
        sub_topology: the sub-topology that owns it; None for a global table.
        keys: the keys of the wanted rows; without keys the response has the position only.
        start: the first key of a scan; None is the store's first.
        end: the first key after a scan; None is after the store's last.
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
    """Response of a worker, from a single moment.

    Args:
        topic_id: the id of the changelog; with the next three fields it is the store's position.
        values: the values of the first keys in their order; of all keys unless they are too large.
        rows: the rows of a scan.
        after: the last key that a scan has read, to continue after it; None at the end.
        count: the number of rows.
    """

    topic_id: str
    offset: int
    commit_id: int
    wall_ms: int
    values: tuple[bytes | None, ...] = ()
    rows: tuple[tuple[bytes, bytes], ...] = ()
    after: bytes | None = None
    count: int = 0


class QueryRefusal(msgspec.Struct, frozen=True, array_like=True):
    """Reason why a worker does not answer a query.

    Args:
        is_elsewhere: whether the worker does not own the task.
        remaining: the number of changelog offsets left to restore.
    """

    reason: str
    is_elsewhere: bool = False
    remaining: int | None = None


Outcome = StateQueryResponse | QueryRefusal


class UnansweredError(StreamsError):
    """Raised if a worker does not answer a query; try again later."""

    def __init__(self, refused: QueryRefusal) -> None:
        super().__init__(refused.reason)
        self.refused = refused


SendQuery = Callable[[StateQueryRequest, float], StateQueryResponse]
"""Queries a worker, and waits for a number of seconds; raises `UnansweredError`."""
Workers = Callable[[], "dict[int, SendQuery] | None"]
"""Returns the workers that can be queried now, by number; None if no worker runs here."""


def unresponsive(within_s: float) -> QueryRefusal:
    return QueryRefusal(
        f"its worker did not answer within {within_s:g} s: a batch, a commit or a function takes "
        "longer, or the worker hangs. Retry later"
    )


def resolve(future: Future[Outcome], outcome: Outcome) -> None:
    """Set the outcome of a query, unless its caller has given up. Any thread."""
    with suppress(InvalidStateError):
        future.set_result(outcome)


def await_response(future: Future[Outcome], within_s: float) -> StateQueryResponse:
    """Raise UnansweredError after `within_s`, or if the query is refused."""
    try:
        outcome = future.result(within_s)
    except TimeoutError:
        future.cancel()
        outcome = unresponsive(within_s)
    if isinstance(outcome, QueryRefusal):
        raise UnansweredError(outcome)
    return outcome


# Queue between the threads that send queries and the worker's thread, which answers them.
#
#     any thread:       ask ─► queue ─┐                         ┌─► answer
#     worker's thread:  poll ─► process ─► commit ─► answers some ─► poll …
#
# The worker answers between two batches for at most `TURN_S`, so that processing continues. While
# queries arrive, it polls with a shorter time-out, because a poll cannot be interrupted.


WAITING_MAX = 64
TURN_S = 0.005
"""Maximum seconds that a worker answers queries at a time; a started query is completed."""
ACTIVE_S = 1.0
"""Seconds after a query during which another query is likely."""
POLL_S = 0.005
"""Poll time-out in seconds of a worker that receives queries."""
_CLOSED = QueryRefusal("its worker is not running. Retry later")
_TOO_MANY = QueryRefusal(f"{WAITING_MAX} queries wait for this worker already. Retry later")

Answer = Callable[[StateQueryRequest], Outcome | None]
"""Answers a query in the worker's thread; None if it must be retried."""


class QueryQueue:
    """Queue of queries for a worker's memory; filled by any thread, answered by the worker."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._waiting: deque[tuple[StateQueryRequest, Future[Outcome]]] = deque()
        self._lock = threading.Lock()
        self._is_open = False
        self._answered_s: float | None = None

    # -- any thread ------------------------------------------------------------------------------

    def submit(self, request: StateQueryRequest) -> Future[Outcome]:
        """Enqueue a query, or refuse it immediately; cancel the future to give up.

        Callbacks of the future run in this thread or in the worker's, and must not block.
        """
        future: Future[Outcome] = Future()
        with self._lock:
            refused = None if self._is_open else _CLOSED
            if len(self._waiting) >= WAITING_MAX:
                refused = _TOO_MANY
            if refused is None:
                self._waiting.append((request, future))
        if refused is not None:
            future.set_result(refused)
        return future

    def ask(self, request: StateQueryRequest, within_s: float) -> StateQueryResponse:
        return await_response(self.submit(request), within_s)

    # -- the worker's thread ---------------------------------------------------------------------

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Refuse the waiting queries, and all later queries."""
        with self._lock:
            self._is_open = False
            left = tuple(self._waiting)
            self._waiting.clear()
        for _, future in left:
            resolve(future, _CLOSED)

    def turn(self, answer: Answer) -> None:
        """Answer some of the waiting queries; the first call opens the queue."""
        if not self._is_open:
            self.open()
        if not self._waiting:
            return
        begun_s = now_s = self._monotonic_s()
        for _ in range(len(self._waiting)):
            request, future = self._waiting.popleft()
            if future.cancelled():
                continue
            outcome = answer(request)
            if outcome is None:
                self._waiting.append((request, future))
            else:
                resolve(future, outcome)
            now_s = self._monotonic_s()
            if now_s - begun_s >= TURN_S:
                break
        self._answered_s = now_s

    def bounded(self, wait_s: float) -> float:
        """Limit the wait of a worker for records, depending on recent queries."""
        if self._waiting:
            return 0.0
        if self._answered_s is None:
            return wait_s
        if self._monotonic_s() - self._answered_s > ACTIVE_S:
            self._answered_s = None
            return wait_s
        return min(wait_s, POLL_S)


class QueryHandler:
    """Worker side of the query queue: answers between two batches."""

    def __init__(
        self, queue: QueryQueue, tasks: Tasks, global_tables: GlobalTables, restorer: Restorer
    ) -> None:
        self._queue = queue
        self.bounded = queue.bounded
        self._tasks = tasks
        self._global_tables = global_tables
        self._restorer = restorer

    def turn(self) -> None:
        self._queue.turn(self.answer)

    def answer(self, request: StateQueryRequest) -> Outcome | None:
        """Return None if the query must be retried because more work is needed first."""
        try:
            if request.sub_topology is None:
                rows = self._global_tables.committed(request.store)
                return _not_here(request) if rows is None else _response(request, *rows)
            return self._of_task(request, request.sub_topology)
        except (StateError, KeyError) as error:
            return QueryRefusal(f"its rows cannot be read: {error}. Retry later")

    def _of_task(self, request: StateQueryRequest, sub_topology: int) -> Outcome | None:
        task_id = TaskId(sub_topology, request.partition)
        state, task = self._tasks.states().get(task_id, ("", None))
        if not state:
            return _not_here(request)
        if task is None or state != "running":
            remaining = self._restorer.remaining().get((task_id, request.store))
            return QueryRefusal(f"the task is {state}. Retry later", remaining=remaining)
        stores = task.state
        return _response(request, stores.store(request.store), stores.position(request.store))


def _fitting(values: list[bytes | None]) -> tuple[bytes | None, ...]:
    """Return the first values that fit into a response, and at least the first value."""
    size = 0
    for number, value in enumerate(values, 1):
        size += len(value or b"")
        if size >= BYTES_MAX:
            return tuple(values[:number])
    return tuple(values)


def _not_here(request: StateQueryRequest) -> QueryRefusal:
    return QueryRefusal(f"this worker has no task with store {request.store!r}", is_elsewhere=True)


def _response(
    request: StateQueryRequest, rows: CommittedStore, position: Position | None
) -> Outcome | None:
    if position is None:
        position = Position("", 0, 0, 0)
    position_fields = (position.topic_id, position.offset, position.commit_id, position.wall_ms)
    if request.what == "get":
        return StateQueryResponse(*position_fields, values=_fitting(rows.get_many(request.keys)))
    if request.what == "count":
        return StateQueryResponse(*position_fields, count=rows.approximate_count())
    if not isinstance(rows, MemoryStore):
        return QueryRefusal(f"store {request.store!r} is on disk, where its rows are read")
    page = rows.page(
        request.start,
        request.end,
        reverse=request.reverse,
        most=ROWS_MAX,
        most_bytes=BYTES_MAX,
    )
    return (
        None
        if page is None
        else StateQueryResponse(*position_fields, rows=tuple(page.rows), after=page.after)
    )
