"""When the punctuators of one task are due: pure, and the same for both kinds of time.

A schedule is due at its start and then every interval; what was missed meanwhile is one call, and
the next one is the first of the grid behind now. Several that are due run by the times that they
are due, then in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from headrace.topology.context.number import Number

NEVER_MS = 2**63
"""Later than every time."""


class Schedule:
    """A function that is called time and again; what `ProcessorContext.schedule` returns.

    Args:
        node: the processor that made it.
        interval_ms: between two calls.
        callback: called with the present time in milliseconds.
        due: when it is due next, kept beside the input offsets if the number is.
    """

    __slots__ = ("_cancelled", "callback", "due", "interval_ms", "node")

    def __init__(
        self, node: str, interval_ms: int, callback: Callable[[int], object], due: Number
    ) -> None:
        assert interval_ms > 0, interval_ms
        self.node = node
        self.interval_ms = interval_ms
        self.callback = callback
        self.due = due
        self._cancelled = False

    def cancel(self) -> None:
        """Never call it again; does nothing the second time."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def move_behind(self, now_ms: int) -> None:
        """Be due next at the first time of the grid that is later than now."""
        missed = (now_ms - self.due.value) // self.interval_ms
        self.due.value += (missed + 1) * self.interval_ms


class Schedules:
    """The schedules of one task that go by the same kind of time.

    >>> seen = []
    >>> schedules = Schedules()
    >>> schedules.add(Schedule("node", 10, seen.append, Number(0)))
    >>> for now in (0, 9, 47):
    ...     schedules.run(now, lambda schedule, now: schedule.callback(now))
    >>> seen, schedules.due_ms
    ([0, 47], 50)
    """

    __slots__ = ("_made", "_waiting", "due_ms")

    def __init__(self) -> None:
        self._made = 0
        self._waiting: list[tuple[int, int, Schedule]] = []
        self.due_ms = NEVER_MS
        """When the next one is due; to be looked at before `run` is called."""

    def add(self, schedule: Schedule) -> None:
        """Wait for one more; one that is added by a callback is not called in the same run."""
        self._push(self._made, schedule)
        self._made += 1

    def run(self, now_ms: int, call: Callable[[Schedule, int], None]) -> None:
        """Call those that are due.

        Args:
            now_ms: the present time.
            call: calls one of them. When it raises, that one counts as called and the others stay
                due.
        """
        due = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due.append(heappop(self._waiting))
        try:
            while due:
                _, order, schedule = due.pop(0)
                if schedule.cancelled:
                    continue
                schedule.move_behind(now_ms)
                self._push(order, schedule)
                call(schedule, now_ms)
        finally:
            for _, order, schedule in due:
                self._push(order, schedule)
            self._forget_cancelled()

    def _push(self, order: int, schedule: Schedule) -> None:
        heappush(self._waiting, (schedule.due.value, order, schedule))
        self.due_ms = self._waiting[0][0]

    def _forget_cancelled(self) -> None:
        while self._waiting and self._waiting[0][2].cancelled:
            heappop(self._waiting)
        self.due_ms = self._waiting[0][0] if self._waiting else NEVER_MS
