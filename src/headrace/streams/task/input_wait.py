"""Whether a task with several inputs waits for an empty one (max.task.idle.ms)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.clients import Clock, Consumer, TopicPartition
from headrace.streams.task.task import Task

LAG_WAIT_S = 0.005
"""What a broker is known to have is there soon; markers pass without waking a poll."""


class InputWait:
    """See the module."""

    def __init__(self, config: StreamsConfig, consumer: Consumer, *, clock: Clock) -> None:
        self._config = config
        self._consumer = consumer
        self._clock = clock
        self._waiting: dict[TaskId, float] = {}
        """The tasks that wait for an empty input, and until when at most."""
        self._idle_until_s: dict[TopicPartition, float] = {}
        """Until when to wait for an input that had nothing more; kept until it has."""

    def must_wait(self, task: Task) -> bool:
        """Whether records with lower timestamps may come (Kafka Streams: `readyToProcess`).

        A task with several inputs waits for an empty one as long as the broker is known to have
        more of it, or nothing is known of it yet; beyond that for max.task.idle.ms, from when the
        input was first seen to have nothing, which passes while the task has no records, too.
        """
        if self._config.max_task_idle_ms < 0 or len(task.inputs) < 2:
            return False
        looks = task.queued() or self._config.max_task_idle_ms > 0
        wait_s = self._wait_s(task) if looks else 0.0
        if wait_s <= 0:
            self._waiting.pop(task.id, None)
            return False
        self._waiting[task.id] = self._clock.monotonic_s() + wait_s
        return True

    def look_again(self, task: Task) -> None:
        """Note whether a task that has gone as far as it could waits for one of its inputs now.

        If it counted as waiting from the next turn on only, what it has would leave room for a
        single record in the poll before: each poll would bring just the next one.
        """
        if len(task.inputs) > 1 and task.queued() and task.empty_inputs():
            self.must_wait(task)

    def _wait_s(self, task: Task) -> float:
        """How long to wait for the empty inputs of a task; 0 where it can go on."""
        empty = task.empty_inputs()
        for place in task.inputs:
            if place not in empty:
                self._idle_until_s.pop(place, None)
        if not empty:
            return 0.0
        # The position passes markers and aborted records: nothing will ever come of those.
        positions = self._consumer.positions(empty)
        now_s = self._clock.monotonic_s()
        wait_s = 0.0
        for place in empty:
            next_offset = max(positions.get(place, 0), task.next_offset[place])
            if self._consumer.lag(place, next_offset) != 0:
                self._idle_until_s.pop(place, None)
                wait_s = max(wait_s, LAG_WAIT_S)
            else:
                idle_s = self._config.max_task_idle_ms / 1000
                until_s = self._idle_until_s.setdefault(place, now_s + idle_s)
                wait_s = max(wait_s, until_s - now_s)
        return wait_s

    def is_waiting(self, task: Task) -> bool:
        """Whether a task had to wait when it was last asked for."""
        return task.id in self._waiting

    def wait_s(self, tasks: Iterable[Task]) -> float | None:
        """How long the first of these tasks waits at most; None where none does."""
        until_s = [self._waiting[task.id] for task in tasks if task.id in self._waiting]
        return max(0.0, min(until_s) - self._clock.monotonic_s()) if until_s else None

    def keep_to(self, running: Sequence[Task]) -> None:
        """Forget how long tasks wait that do not run any more."""
        ids = {task.id for task in running}
        read = {place for task in running for place in task.inputs}
        self._waiting = {t: s for t, s in self._waiting.items() if t in ids}
        self._idle_until_s = {p: s for p, s in self._idle_until_s.items() if p in read}
