"""Schedules of a task's punctuators, for stream time and wall-clock time; pure functions.

A schedule is due at its start and then every interval. Missed calls are combined into a single
call, and the next call is due at the first multiple of the interval after now. If several schedules
are due, they run in the order of their due times, then of their creation.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from headrace.topology.context.number import Number

NEVER_MS = 2**63
"""Time after all legal timestamps."""


class Schedule:
    """Periodic call of a function; returned by `ProcessorContext.schedule`.

    Args:
        node: The processor that created it.
        interval_ms: Interval between two calls.
        callback: Called with the current time in milliseconds.
        due: Time of the next call; committed in the offset metadata if the number is.
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
        """Cancel all further calls; repeated calls have no effect."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def move_past(self, now_ms: int) -> None:
        """Set the next call to the first multiple of the interval after now."""
        missed = (now_ms - self.due.value) // self.interval_ms
        self.due.value += (missed + 1) * self.interval_ms


class Schedules:
    """Schedules of a task that use the same kind of time.

    >>> seen = []
    >>> schedules = Schedules()
    >>> schedules.add(Schedule("node", 10, seen.append, Number(0)))
    >>> for now in (0, 9, 47):
    ...     schedules.run(now, lambda schedule, now: schedule.callback(now))
    >>> seen, schedules.due_ms
    ([0, 47], 50)
    """

    __slots__ = ("_created", "_waiting", "due_ms")

    def __init__(self) -> None:
        self._created = 0
        self._waiting: list[tuple[int, int, Schedule]] = []
        self.due_ms = NEVER_MS
        """Time of the next call; check it before calling `run`."""

    def add(self, schedule: Schedule) -> None:
        """Add a schedule; a schedule that a callback adds is not called in the same run."""
        self._push(self._created, schedule)
        self._created += 1

    def run(self, now_ms: int, call: Callable[[Schedule, int], None]) -> None:
        """Call due schedules; if a call raises, it counts as made, and the rest stay due."""
        due = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due.append(heappop(self._waiting))
        try:
            while due:
                _, order, schedule = due.pop(0)
                if schedule.cancelled:
                    continue
                schedule.move_past(now_ms)
                self._push(order, schedule)
                call(schedule, now_ms)
        finally:
            for _, order, schedule in due:
                self._push(order, schedule)
            self._remove_cancelled()

    def _push(self, order: int, schedule: Schedule) -> None:
        heappush(self._waiting, (schedule.due.value, order, schedule))
        self.due_ms = self._waiting[0][0]

    def _remove_cancelled(self) -> None:
        while self._waiting and self._waiting[0][2].cancelled:
            heappop(self._waiting)
        self.due_ms = self._waiting[0][0] if self._waiting else NEVER_MS
