"""Pausing of tasks that are far ahead of their sub-topology in event time.

Windows after a repartition topic stay open until the slowest partition has passed them. A partition
with few records per hour would be read to its end in the meantime, and all of its windows would be
open. So while a task has more than repartition.lag.max.records left to read, other tasks wait if
their next record is ahead of it by more than the event time that it covers with that many records.
They continue at half of that distance.

A partition is that far ahead only if it has far fewer records for the same time. If partitions have
similar rates, no task waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.streams.kafka.protocols import Clock, Consumer
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.task import Task, lags_of
from headrace.streams.tasks.tasks import Tasks

CHECK_S = 0.05
"""Seconds between two checks whether a task is ahead."""
STALLED_S = 5.0
"""Seconds without progress after which other tasks no longer wait for a task."""
KNOWN_PER_LIMIT = 4
"""A rate is known after the limit divided by this number of records."""


@dataclass(slots=True)
class _ReadRate:
    """Records read by a task since its first known event time."""

    task: Task
    begun_ms: int
    begun: int
    read: int
    progress_s: float

    def span_ms(self, records: int, time_ms: int) -> float | None:
        count = self.read - self.begun
        if count * KNOWN_PER_LIMIT < records or time_ms <= self.begun_ms:
            return None
        return (time_ms - self.begun_ms) * records / count


class EventOrder:
    """Pauses tasks that are far ahead of their sub-topology in event time.

    Args:
        subs: the sub-topologies whose event time bounds downstream tasks.
        limit: repartition.lag.max.records; 0 disables the feature.
    """

    def __init__(
        self,
        subs: frozenset[int],
        limit: int,
        consumer: Consumer,
        tasks: Tasks,
        *,
        check_s: float,
        clock: Clock,
    ) -> None:
        self._subs = subs if limit else frozenset()
        self._limit = limit
        self._consumer = consumer
        self._tasks = tasks
        self._clock = clock
        self._rates: dict[TaskId, _ReadRate] = {}
        self._check_s = check_s
        self._next_check_s: dict[int, float] = {}
        self._until_ms: dict[int, tuple[float, float]] = {}
        """By sub-topology: the time up to which its tasks may read, and the time below which paused
        tasks continue."""
        self._paused: set[TaskId] = set()

    def must_wait(self, task: Task) -> bool:
        """Return whether a task must wait for a slower task; call it in each turn."""
        sub = task.id.sub_topology
        if sub not in self._subs or not task.queued():
            return False
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_check_s.get(sub, now_s):
            self._next_check_s[sub] = now_s + self._check_s
            self._find_slowest(sub, now_s)
        until = self._until_ms.get(sub)
        if until is None:
            self._paused.discard(task.id)
            return False
        next_ms = min(head.timestamp()[1] for head in task.heads())
        is_ahead = next_ms > until[task.id in self._paused]
        (self._paused.add if is_ahead else self._paused.discard)(task.id)
        return is_ahead

    def _find_slowest(self, sub: int, now_s: float) -> None:
        """Find the slowest task of a sub-topology and the time up to which the rest may read."""
        running = [task for task in self._tasks.running if task.id.sub_topology == sub]
        slowest: tuple[int, _ReadRate] | None = None
        for task in running if len(running) > 1 else ():
            time_ms = max(task.partition_time[tp] for tp in task.inputs)
            rate = self._rate(task, time_ms, now_s)
            is_stalled = now_s - rate.progress_s > STALLED_S
            if time_ms >= 0 and not is_stalled and self._is_far_behind(task):
                slowest = min(slowest or (time_ms, rate), (time_ms, rate), key=lambda one: one[0])
        self._until_ms.pop(sub, None)
        if slowest is not None:
            time_ms, rate = slowest
            span_ms = rate.span_ms(self._limit, time_ms)
            if span_ms is not None:
                self._until_ms[sub] = time_ms + span_ms, time_ms + span_ms / 2

    def _rate(self, task: Task, time_ms: int, now_s: float) -> _ReadRate:
        read = sum(task.next_offset.values())
        rate = self._rates.get(task.id)
        if rate is None or rate.task is not task or rate.begun_ms < 0:
            rate = self._rates[task.id] = _ReadRate(task, time_ms, read, read, now_s)
        elif read != rate.read:
            rate.read, rate.progress_s = read, now_s
        return rate

    def _is_far_behind(self, task: Task) -> bool:
        lags = lags_of(task, self._consumer, task.inputs)
        return task.queued() + sum(lag or 0 for lag in lags.values()) > self._limit
