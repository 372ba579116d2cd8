"""Has a worker that gets tasks wait at a gate, without standing still meanwhile.

The group gives out tasks in a callback within a poll. Whoever waited there for an answer of the
cluster would miss the next polls, and be given up. So the question is asked beside the worker, and
no task begins before its answer: it is asked anew with each assignment that ends a time without
tasks, since others may have been at work meanwhile.

The client's own time-outs go by the wall clock, so a call can hang for as long as that clock was
put back. A question that has no answer for long is therefore asked once more, by another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.inquiry import Inquiry

ASK_SOON_S = 0.2
"""After an answer that tasks may not begin yet."""
ASK_AGAIN_S = 10.0
"""After which an answer is late; each further one is waited for twice as long."""


class Gate(Protocol):
    """What a worker waits for before its tasks begin."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks have changed; called within a poll, so it must not wait."""

    def on_new_membership(self) -> None:
        """The membership before has ended: tasks wait again, after the next assignment."""

    def is_passed(self) -> bool:
        """Whether tasks may begin.

        Raises:
            StreamsError: they may not, or nobody can tell.
        """


class OpenGate:
    """A gate where nothing is to be looked for."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Do nothing."""

    def on_new_membership(self) -> None:
        """Do nothing."""

    def is_passed(self) -> bool:
        """It is."""
        return True


class GateWatch:
    """Non-blocking wait of new tasks at a start gate.

    Args:
        look: asks the cluster; returns whether tasks may begin, or else to be asked again soon;
            raises where they may not.
        passed: called when they may.
        watch: asks the cluster whenever the tasks have changed, without that they wait; raises
            where they may not go on.
        patience_s: how long an answer is waited for, in seconds.
        waiting: whether no broker can be reached now, so that it may take longer.
    """

    def __init__(
        self,
        look: Callable[[], bool],
        *,
        passed: Callable[[], None] = lambda: None,
        watch: Callable[[], None] = lambda: None,
        make_background: Callable[[], Background],
        clock: Clock,
        patience_s: float,
        log: Log,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._look = look
        self._passed = passed
        self._watch = watch
        self._watched: Inquiry[bool] | None = None
        self._make_background = make_background
        self._clock = clock
        self._patience_s = patience_s
        self._log = log
        self._waiting = waiting
        self._has_tasks = False
        self._inquiry: Inquiry[bool] | None = None
        self._again_at_s: float | None = None
        """When to ask again, where tasks may not begin yet."""
        self._now_s = 0.0
        self._waited_s = 0.0
        self._late_s = 0.0

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Ask when a worker without tasks gets some."""
        had, self._has_tasks = self._has_tasks, bool(tasks)
        if not self._has_tasks:
            self._inquiry = self._again_at_s = self._watched = None
        elif not had:
            self._begin_to_ask()
        elif self._inquiry is None and self._again_at_s is None:
            self._watched = Inquiry[bool](self._make_background())
            self._watched.ask(self._watch_once)

    def on_new_membership(self) -> None:
        """Ask again with the next assignment."""
        self._has_tasks = False

    def _begin_to_ask(self) -> None:
        self._again_at_s = None
        self._now_s, self._waited_s = self._clock.monotonic_s(), 0.0
        self._late_s = ASK_AGAIN_S
        self._ask()

    def _ask(self) -> None:
        # An answer to an earlier question could be older than the assignment.
        self._inquiry = Inquiry[bool](self._make_background())
        self._inquiry.ask(self._look)

    def _watch_once(self) -> bool:
        self._watch()
        return True

    def is_passed(self) -> bool:
        """Whether the answer is there, and nothing keeps tasks from beginning.

        Raises:
            StreamsError: what `look` has raised.
            FatalClientError: there was no answer for as long as calls are repeated.
        """
        if self._inquiry is None:
            self._take_watched()
            return self._again_at_s is None or self._ask_in_time()
        answer = self._inquiry.take()
        if answer:
            self._inquiry = None
            self._passed()
            return True
        if answer is None:
            self._wait()
        else:
            self._inquiry, self._again_at_s = None, self._clock.monotonic_s() + ASK_SOON_S
        return False

    def _ask_in_time(self) -> bool:
        """Ask again when it is time; nothing may begin until then."""
        assert self._again_at_s is not None
        if self._clock.monotonic_s() >= self._again_at_s:
            self._begin_to_ask()
        return False

    def _take_watched(self) -> None:
        if self._watched is not None and self._watched.take():
            self._watched = None

    def _wait(self) -> None:
        # Added up, so that a clock that is put back costs no more than what it is put back by.
        before_s, self._now_s = self._now_s, self._clock.monotonic_s()
        self._waited_s += max(0.0, self._now_s - before_s)
        if self._waited_s >= self._patience_s and not self._waiting():
            raise FatalClientError(
                f"the brokers did not say for {self._patience_s:.0f} s whether a backfill is open "
                "and who else is in the group; see that they are up, or raise task.timeout.ms"
            )
        if self._waited_s >= self._late_s:
            self._late_s *= 2
            self._log.warning("backfill_gate_waits", waited_s=round(self._waited_s))
            self._ask()
