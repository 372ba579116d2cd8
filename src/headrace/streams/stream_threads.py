"""Workers that are added to an application while it runs in this process, each in a thread.

    application ─► its own worker          from `run` or `start` to the end
              └──► added ones ─► removed   they leave the group, and others get their tasks
                        │
                        └─ failed          ends all of them, with this error

An added worker is an application of the same topology and listeners with one worker of its own: its
clients, its identity and its tasks are its own, and what a process of `headrace run` would have.
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
    """Handle on one added worker.

    Args:
        run: works until it is told to stop; raises what stopped it.
        stop: asks it to stop, given whether it leaves the group; None does as ``on.stop`` says.
        state: what it is doing.
        view: what is known of it in numbers.
        processed: the records that it has processed.
        desk: takes questions about rows in its memory.
    """

    run: Callable[[], None]
    stop: Callable[[bool | None], None]
    state: Callable[[], State]
    view: Callable[[], WorkerView]
    processed: Callable[[], int]
    desk: QueryQueue = field(default_factory=QueryQueue)


@dataclass(slots=True, eq=False)
class _Member:
    index: int
    hand: ThreadHandle
    thread: threading.Thread = field(init=False)
    leaves: bool = False
    """Whether it was told to leave for good."""


class StreamThreads:
    """Added workers of one application, each in a thread.

    Args:
        name: what threads are called, with the worker's number behind it.
        make: makes the worker of a number; it does not run yet.
        changed: called when a worker is there or gone, or does something else.
        failed: called when one has failed; the whole application is to stop.
        timeout_s: how long one that is removed may take, in seconds.
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
        self._members: list[_Member] = []
        self._is_over = False
        self._processed_before = 0
        # A signal's handler may come while this very thread has it.
        self._lock = threading.RLock()
        self.failure: BaseException | None = None
        """The first error that stopped an added worker, and with it the application."""

    @property
    def processed(self) -> int:
        """Records that added workers have processed, those of removed ones included."""
        with self._lock:
            return self._processed_before + sum(one.hand.processed() for one in self._members)

    def add(self) -> str | None:
        """Begin another worker; returns its name, or None where all are being stopped."""
        with self._lock:
            if self._is_over:
                return None
            taken = {member.index for member in self._members}
            index = next(n for n in range(1, len(taken) + 2) if n not in taken)
            member, name = _Member(index, self._make(index)), f"{self._name}-{index}"
            member.thread = threading.Thread(target=self._run, args=(member,), name=name)
            self._members.append(member)
            self._members.sort(key=lambda one: one.index)
            member.thread.start()
        self._changed()
        return name

    def remove(self, timeout: timedelta | None = None) -> str | None:
        """End the worker that has the highest number; returns its name, or None without any.

        Raises:
            TimeoutError: it did not end in time, and goes on to in the background.
        """
        with self._lock:
            staying = [one for one in self._members if not one.leaves and one.thread.is_alive()]
            if self._is_over or not staying:
                return None
            member = staying[-1]
            member.leaves = True
        member.hand.stop(True)
        if member.thread is threading.current_thread():
            return member.thread.name  # it ends when it comes back to its loop
        seconds = self._timeout_s if timeout is None else timeout.total_seconds()
        member.thread.join(seconds)
        if member.thread.is_alive():
            raise TimeoutError(
                f"worker {member.thread.name} did not stop within {seconds:g} s; a user function "
                "may take long, or the brokers do not answer. It ends when it can"
            )
        return member.thread.name

    def stop(self, leave: bool | None = None) -> None:
        """Ask all to stop; no other one can be added from now on."""
        with self._lock:
            self._is_over = True
            members = tuple(self._members)
        for member in members:
            member.hand.stop(leave)

    def beside(self, work: Callable[[], None]) -> None:
        """Do the own worker's work; then stop the added ones, and wait for them.

        Raises:
            BaseException: what stopped the first of all.
        """
        try:
            work()
        finally:
            self.stop()
            for member in tuple(self._members):
                member.thread.join()
        if self.failure is not None:
            raise self.failure

    def has_thread(self, thread: threading.Thread) -> bool:
        """Whether it is that of an added worker."""
        return any(member.thread is thread for member in tuple(self._members))

    def state_with(self, own: State) -> State:
        """What the application is doing, whose own worker is so far: what the slowest one does."""
        if not own.works:
            return own
        states = {own, *(member.hand.state() for member in tuple(self._members))}
        return next((state for state in _LEAST_FIRST if state in states), own)

    def views(self) -> tuple[WorkerView, ...]:
        """What is known of the added workers."""
        return tuple(_view(member) for member in tuple(self._members))

    def desks(self) -> dict[int, QueryQueue]:
        """Where the added workers take questions, by their numbers."""
        return {member.index: member.hand.desk for member in tuple(self._members)}

    def _run(self, member: _Member) -> None:
        failure: BaseException | None = None
        try:
            member.hand.run()
        except BaseException as error:  # the application raises it
            failure = error
        with self._lock:
            is_first = failure is not None and not (self._is_over or member.leaves)
            if is_first:
                self.failure, self._is_over = failure, True
            if member.leaves:
                self._members.remove(member)
                self._processed_before += member.hand.processed()
        if is_first:
            self._failed()
        self._changed()


def _view(member: _Member) -> WorkerView:
    view = replace(member.hand.view(), index=member.index)
    return view if member.thread.is_alive() else replace(view, pid=None)
