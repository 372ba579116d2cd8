"""Non-blocking start gate for the tasks that a worker has been assigned.

The consumer group assigns tasks in a callback within a poll. A worker that waited there for an
answer of the cluster would miss later polls and be removed from the group. So the check runs in the
background, and no task starts before its result. Each assignment that ends a period without tasks
repeats the check, because other members may have processed records in the meantime.

The timeouts of the client use the wall clock, so a call can hang for as long as that clock was set
back. If a check has no result for a long time, another thread therefore repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.background_request import BackgroundRequest

RECHECK_S = 0.2
"""Seconds before the next check if tasks may not start yet."""
REPEAT_S = 10.0
"""Seconds after which a check is repeated because it has no result; doubles with each repetition.
"""


class Gate(Protocol):
    """Condition that must be met before the tasks of a worker start."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Handle a new assignment; called within a poll, so it must not block."""

    def on_new_membership(self) -> None:
        """Handle the end of the previous membership: tasks wait again after the next assignment."""

    def is_passed(self) -> bool:
        """Return whether tasks may start; raise if they must not, or if that cannot be checked."""


class OpenGate:
    """Gate that is always open."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None: ...

    def on_new_membership(self) -> None: ...

    def is_passed(self) -> bool:
        return True


class GateWatch:
    """Non-blocking wait of new tasks at a start gate.

    Args:
        check: checks the cluster; returns True if tasks may start, False to check again soon;
            raises if tasks must not start.
        passed: called when tasks may start.
        watch: checks the cluster after other changes of the assignment, without pausing tasks;
            raises if tasks must stop.
        timeout_s: maximum wait for a result, in seconds.
        waiting: returns whether no broker is reachable now; the maximum wait is not enforced then.
    """

    def __init__(
        self,
        check: Callable[[], bool],
        *,
        passed: Callable[[], None] = lambda: None,
        watch: Callable[[], None] = lambda: None,
        make_background: Callable[[], Background],
        clock: Clock,
        timeout_s: float,
        log: Log,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._check = check
        self._passed = passed
        self._watch = watch
        self._watched: BackgroundRequest[bool] | None = None
        self._make_background = make_background
        self._clock = clock
        self._timeout_s = timeout_s
        self._log = log
        self._waiting = waiting
        self._has_tasks = False
        self._request: BackgroundRequest[bool] | None = None
        self._again_at_s: float | None = None
        """Time of the next check, if tasks may not start yet."""
        self._now_s = 0.0
        self._waited_s = 0.0
        self._late_s = 0.0

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        had, self._has_tasks = self._has_tasks, bool(tasks)
        if not self._has_tasks:
            self._request = self._again_at_s = self._watched = None
        elif not had:
            self._start_checks()
        elif self._request is None and self._again_at_s is None:
            self._watched = BackgroundRequest[bool](self._make_background())
            self._watched.submit(self._watch_once)

    def on_new_membership(self) -> None:
        self._has_tasks = False

    def _start_checks(self) -> None:
        self._again_at_s = None
        self._now_s, self._waited_s = self._clock.monotonic_s(), 0.0
        self._late_s = REPEAT_S
        self._submit_check()

    def _submit_check(self) -> None:
        # The result of an earlier check could predate the assignment.
        self._request = BackgroundRequest[bool](self._make_background())
        self._request.submit(self._check)

    def _watch_once(self) -> bool:
        self._watch()
        return True

    def is_passed(self) -> bool:
        if self._request is None:
            if self._watched is not None and self._watched.poll():
                self._watched = None
            if self._again_at_s is None:
                return True
            if self._clock.monotonic_s() >= self._again_at_s:
                self._start_checks()
            return False
        may_start = self._request.poll()
        if may_start:
            self._request = None
            self._passed()
            return True
        if may_start is None:
            self._wait()
        else:
            self._request, self._again_at_s = None, self._clock.monotonic_s() + RECHECK_S
        return False

    def _wait(self) -> None:
        # Sum of positive steps: a clock that is set back prolongs the wait by that step only.
        before_s, self._now_s = self._now_s, self._clock.monotonic_s()
        self._waited_s += max(0.0, self._now_s - before_s)
        if self._waited_s >= self._timeout_s and not self._waiting():
            raise FatalClientError(
                "the brokers did not answer whether a backfill is open and which members the group "
                f"has (for {self._timeout_s:.0f} s). Start the brokers, or raise task.timeout.ms."
            )
        if self._waited_s >= self._late_s:
            self._late_s *= 2
            self._log.warning("start_waits_for_backfill", waited_s=round(self._waited_s))
            self._submit_check()
