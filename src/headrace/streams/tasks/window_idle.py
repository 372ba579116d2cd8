"""Closing of windows of tasks that have been idle for window.close.idle.ms.

The feature is off unless window.close.idle.ms is set: if a window is closed without a later record,
all records that still arrive for it are late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.streams.kafka.protocols import Clock, Consumer
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.task import Task, lags_of


class IdleWindows:
    """Tasks that have been idle so long that their windows are closed.

    Args:
        idle_ms: window.close.idle.ms; 0 disables the feature.
        is_behind: returns whether upstream tasks have more to read.
    """

    def __init__(
        self,
        idle_ms: int,
        consumer: Consumer,
        running: Callable[[], Sequence[Task]],
        is_behind: Callable[[Task], bool],
        *,
        clock: Clock,
    ) -> None:
        self._idle_s = idle_ms / 1000
        self._consumer = consumer
        self._running = running
        self._is_behind = is_behind
        self._clock = clock
        self._since_s: dict[TaskId, float] = {}
        self._closed: dict[TaskId, Task] = {}
        """Tasks whose windows were closed since their last record; an abort replaces the task
        object."""

    def due(self) -> list[Task]:
        """Return the tasks whose windows must be closed now, each at most once per idle period."""
        if not self._idle_s:
            return []
        running = self._running()
        now_s = self._clock.monotonic_s()
        self._retain(running)
        return [task for task in running if self._is_due(task, now_s)]

    def _is_due(self, task: Task, now_s: float) -> bool:
        since_s = self._since_s.setdefault(task.id, now_s)
        if task.queued():
            self._since_s[task.id] = now_s
            self._closed.pop(task.id, None)
            return False
        if self._closed.get(task.id) is task or now_s - since_s < self._idle_s:
            return False
        if not self._has_read_all(task):
            self._since_s[task.id] = now_s
            return False
        self._closed[task.id] = task
        return True

    def reset(self, task: Task) -> None:
        if self._idle_s:
            self._since_s[task.id] = self._clock.monotonic_s()
            self._closed.pop(task.id, None)

    def _has_read_all(self, task: Task) -> bool:
        if self._is_behind(task):
            return False
        return all(lag == 0 for lag in lags_of(task, self._consumer, task.inputs).values())

    def _retain(self, running: Sequence[Task]) -> None:
        if len(self._since_s) > len(running):
            ids = {task.id for task in running}
            self._since_s = {t: s for t, s in self._since_s.items() if t in ids}
            self._closed = {t: task for t, task in self._closed.items() if t in ids}
