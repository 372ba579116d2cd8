"""Workers added to a running application, each in a thread of this process.

    application ─► its own worker          from `run` or `start` to the end
              └──► added ─► removed        leaves the group; its tasks move to other workers
                     │
                     └─ failed             stops all workers with this error

An added worker is an application with the same topology and listeners: it has its own clients,
identity and tasks, as a process of `headrace run` has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from headrace.streams.metrics.snapshots import WorkerView
from headrace.streams.queries.query_queue import QueryQueue
from headrace.streams.states import State

_LEAST_FIRST = (State.CONNECTING, State.REBALANCING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadHandle:
    """Handle on an added worker.

    Args:
        run: runs the worker until it is stopped; raises the error that stopped it.
        stop: requests a stop; the argument is whether to leave the group, None follows ``on.stop``.
        state: returns its state.
        view: returns a snapshot of its metrics.
        processed: returns the number of records that it has processed.
        query_queue: takes queries for rows in its memory.
    """

    run: Callable[[], None]
    stop: Callable[[bool | None], None]
    state: Callable[[], State]
    view: Callable[[], WorkerView]
    processed: Callable[[], int]
    query_queue: QueryQueue = field(default_factory=QueryQueue)


@dataclass(slots=True, eq=False)
class _AddedWorker:
    index: int
    handle: ThreadHandle
    thread: threading.Thread = field(init=False)
    leaves: bool = False
    """Whether it is being removed."""


class StreamThreads:
    """Added workers of an application, each in a thread.

    Args:
        name: prefix of the thread names; the worker's number is appended.
        make: creates the worker with a number, without starting it.
        changed: called after a worker was added, was removed or changed its state.
        failed: called after a worker failed; it must stop the whole application.
        timeout_s: maximum time to wait for a removed worker, in seconds.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], ThreadHandle],
        *,
        changed: Callable[[], None],
        failed: Callable[[], None],
        timeout_s: float,
    ) -> None:
        self._name = name
        self._make = make
        self._changed = changed
        self._failed = failed
        self._timeout_s = timeout_s
        self._members: list[_AddedWorker] = []
        self._is_over = False
        self._processed_before = 0
        # Reentrant: a signal handler may run while this thread holds the lock.
        self._lock = threading.RLock()
        self.failure: BaseException | None = None
        """First error of an added worker, which also stopped the application."""

    @property
    def processed(self) -> int:
        """Number of records that added workers have processed, including removed workers."""
        with self._lock:
            return self._processed_before + sum(one.handle.processed() for one in self._members)

    def add(self) -> str | None:
        """Start another worker; return its name, or None if the application is stopping."""
        with self._lock:
            if self._is_over:
                return None
            taken = {member.index for member in self._members}
            index = next(n for n in range(1, len(taken) + 2) if n not in taken)
            member, name = _AddedWorker(index, self._make(index)), f"{self._name}-{index}"
            member.thread = threading.Thread(target=self._run, args=(member,), name=name)
            self._members.append(member)
            self._members.sort(key=lambda one: one.index)
            member.thread.start()
        self._changed()
        return name

    def remove(self, timeout: timedelta | None = None) -> str | None:
        """Stop the added worker with the highest number; return its name, or None without any."""
        with self._lock:
            staying = [one for one in self._members if not one.leaves and one.thread.is_alive()]
            if self._is_over or not staying:
                return None
            member = staying[-1]
            member.leaves = True
        member.handle.stop(True)
        if member.thread is threading.current_thread():
            return member.thread.name  # it ends when it comes back to its loop
        seconds = self._timeout_s if timeout is None else timeout.total_seconds()
        member.thread.join(seconds)
        if member.thread.is_alive():
            raise TimeoutError(
                f"worker {member.thread.name} did not stop within {seconds:g} s: a user function "
                "may take long, or the brokers do not answer. It stops in the background"
            )
        return member.thread.name

    def stop(self, leave: bool | None = None) -> None:
        """Request a stop of all added workers; later calls of `add` return None."""
        with self._lock:
            self._is_over = True
            members = tuple(self._members)
        for member in members:
            member.handle.stop(leave)

    def run_with(self, work: Callable[[], None]) -> None:
        """Run the own worker; then stop the added workers, wait, and raise their first error."""
        try:
            work()
        finally:
            self.stop()
            for member in tuple(self._members):
                member.thread.join()
        if self.failure is not None:
            raise self.failure

    def has_thread(self, thread: threading.Thread) -> bool:
        return any(member.thread is thread for member in tuple(self._members))

    def state_with(self, own: State) -> State:
        """Return the state of the whole application: that of its least advanced worker."""
        if not own.works:
            return own
        states = {own, *(member.handle.state() for member in tuple(self._members))}
        return next((state for state in _LEAST_FIRST if state in states), own)

    def views(self) -> tuple[WorkerView, ...]:
        return tuple(_view(member) for member in tuple(self._members))

    def query_queues(self) -> dict[int, QueryQueue]:
        return {member.index: member.handle.query_queue for member in tuple(self._members)}

    def _run(self, member: _AddedWorker) -> None:
        failure: BaseException | None = None
        try:
            member.handle.run()
        except BaseException as error:  # the application raises it
            failure = error
        with self._lock:
            is_first = failure is not None and not (self._is_over or member.leaves)
            if is_first:
                self.failure, self._is_over = failure, True
            if member.leaves:
                self._members.remove(member)
                self._processed_before += member.handle.processed()
        if is_first:
            self._failed()
        self._changed()


def _view(member: _AddedWorker) -> WorkerView:
    view = replace(member.handle.view(), index=member.index)
    return view if member.thread.is_alive() else replace(view, pid=None)
