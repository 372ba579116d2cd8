"""Calls of plain functions, each in a thread of a pool.

A thread cannot be interrupted. What takes too long goes on in its thread and is not heard any more;
another thread takes that one's place, and the first one ends when its call does. They are daemons,
so that none keeps the process alive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from headrace.streams.calls.attempts import Attempts
from headrace.streams.calls.watch import LOOK_S, Look, unwatched
from headrace.topology.context.calls import CallPlan, Job
from headrace.topology.errors import CallsStuckError, CallTimeoutError

STUCK_FACTOR = 10
"""How many times as many calls as may be under way may be stuck."""

Work = Callable[[], bool]
"""Returns whether the thread may be used again."""


class Threads:
    """The pool of one worker."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work | None]] = []
        self._stuck = 0
        self._is_closed = False

    def run(self, jobs: Sequence[Job], plan: CallPlan, look: Look = unwatched) -> None:
        """Make the calls, and return when all of them have ended or taken too long."""
        if self._stuck > STUCK_FACTOR * plan.concurrency:
            for job in jobs:
                job.error = CallsStuckError(self._stuck)
            return
        wave = _Wave(jobs, plan, self._monotonic_s)
        for _ in range(min(plan.concurrency, len(jobs))):
            self._start(partial(self._lane, wave))
        try:
            while late := wave.wait(look):
                self._leave(late)
                for _ in range(late):
                    self._start(partial(self._lane, wave))
        except BaseException:  # such as Ctrl-C: nobody hears of those under way
            self._leave(wave.give_up())
            raise

    def _leave(self, calls: int) -> None:
        with self._lock:
            self._stuck += calls

    def _lane(self, wave: _Wave) -> bool:
        kept = wave.take_turns()
        if not kept:
            with self._lock:
                self._stuck -= 1
        return kept

    def _start(self, work: Work) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(
                target=self._serve, args=(inbox,), name="headrace-call", daemon=True
            ).start()
        inbox.put(work)

    def _serve(self, inbox: SimpleQueue[Work | None]) -> None:
        while (work := inbox.get()) is not None:
            if not work():
                return
            with self._lock:
                if self._is_closed:
                    return
                self._idle.append(inbox)

    def close(self) -> None:
        """Let idle threads end, and others as soon as they are idle."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)


class _Wave:
    """Jobs that are waited for together.

    Who owns what: a job is a lane's from when it is begun until it ends or is late, whichever comes
    first under the lock.
    """

    def __init__(
        self, jobs: Sequence[Job], plan: CallPlan, monotonic_s: Callable[[], float]
    ) -> None:
        self._plan = plan
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._waiting = deque(jobs)
        self._running: dict[Job, tuple[float, Attempts]] = {}
        self._left = len(jobs)
        self._ended = 0

    def take_turns(self) -> bool:
        """Run jobs until none waits; returns False where one of them was late."""
        while True:
            with self._changed:
                if not self._waiting:
                    return True
                job = self._waiting.popleft()
                # What is late is told by another thread: this one must not change it then.
                own = Job(job.attempt)
                attempts = Attempts(own, self._plan)
                due_s = self._monotonic_s() + self._plan.timeout_ms / 1000
                self._running[job] = (due_s, attempts)
                self._changed.notify_all()  # who waits must know until when
            try:
                attempts.run(partial(self._pause, job))
            except _LateError:
                return False
            with self._changed:
                if self._running.pop(job, None) is None:
                    return False
                job.value, job.error = own.value, own.error
                self._end(job)

    def _pause(self, job: Job, pause_s: float) -> None:
        """Wait before the next attempt; one that is late makes no further one."""
        with self._changed:
            ends_s = self._monotonic_s() + pause_s
            while (rest_s := ends_s - self._monotonic_s()) > 0 and job in self._running:
                self._changed.wait(rest_s)
            if job not in self._running:
                raise _LateError

    def _end(self, job: Job) -> None:
        job.ended = self._ended
        self._ended += 1
        self._left -= 1
        self._changed.notify_all()

    def give_up(self) -> int:
        """Begin no more, and hear nothing of those under way; returns how many these are."""
        with self._changed:
            under_way = len(self._running)
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()
            return under_way

    def wait(self, look: Look) -> int:
        """Wait until all is done, or some are late; returns how many, and 0 in the end."""
        look_s = self._monotonic_s() + LOOK_S
        with self._changed:
            while self._left:
                now_s = self._monotonic_s()
                late = [job for job, (due_s, _) in self._running.items() if due_s <= now_s]
                for job in late:
                    _, attempts = self._running.pop(job)
                    job.error = CallTimeoutError(self._plan.timeout_ms, attempts.made)
                    self._end(job)
                if late:
                    return len(late)
                due_s = min((due_s for due_s, _ in self._running.values()), default=None)
                if now_s >= look_s:
                    look()
                    look_s = now_s + LOOK_S
                ends_s = look_s if due_s is None else min(due_s, look_s)
                self._changed.wait(ends_s - now_s)
            return 0


class _LateError(BaseException):
    """Ends the thread of a call that nobody waits for any more."""
