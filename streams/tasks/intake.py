"""How much a worker reads, and which tasks wait for more (max.task.idle.ms).

What waits bounds what is asked for, and full queues are paused.
"""

from __future__ import annotations

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.clients import Clock, Consumer, TopicPartition
from headrace.streams.task.task import Task
from headrace.streams.tasks.tasks import Tasks


class Intake:
    """See the module.

    Args:
        config: max.poll.records, buffered.records.per.partition and max.task.idle.ms.
    """

    def __init__(
        self, config: StreamsConfig, consumer: Consumer, tasks: Tasks, *, clock: Clock
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._tasks = tasks
        self._clock = clock
        self._paused: set[TopicPartition] = set()
        self._waiting: dict[TaskId, float] = {}
        """The tasks that wait for an empty input, and until when at most."""
        self._idle_until_s: dict[TopicPartition, float] = {}
        """Until when to wait for an input that had nothing more; kept until it has."""

    def room(self) -> int:
        """How many records to ask for: what waits already counts, and a poll is due in any case."""
        waiting = sum(
            task.queued_in(place)
            for task in self._tasks.running
            for place in task.inputs
            if place not in self._paused
        )
        return max(1, self._config.max_poll_records - waiting)

    def must_wait(self, task: Task) -> bool:
        """Whether records with lower timestamps may come (Kafka Streams: `readyToProcess`).

        A task with several inputs waits for an empty one as long as the broker is known to have
        more of it, or nothing is known of it yet; beyond that for max.task.idle.ms, from when the
        input was first seen to have nothing. To be asked in each turn, whether the task has
        records or not, as that time passes while it has none.
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
                wait_s = max(wait_s, _LAG_WAIT_S)
            else:
                idle_s = self._config.max_task_idle_ms / 1000
                until_s = self._idle_until_s.setdefault(place, now_s + idle_s)
                wait_s = max(wait_s, until_s - now_s)
        return wait_s

    def wait_s(self) -> float | None:
        """How long a poll may wait for what tasks wait for; None where none waits."""
        until_s = [self._waiting[t.id] for t in self._tasks.running if t.id in self._waiting]
        return max(0.0, min(until_s) - self._clock.monotonic_s()) if until_s else None

    def is_ready(self, task: Task) -> bool:
        """Whether a task has records, and did not have to wait when it was last asked for."""
        return task.queued() > 0 and task.id not in self._waiting

    def hold_back(self, task: Task) -> None:
        """Pause full queues of a task that waits for another input, so that it can arrive."""
        full = [
            place
            for place in task.inputs
            if place not in self._paused
            and task.queued_in(place) >= self._config.buffered_records_per_partition
        ]
        if full:
            self._consumer.pause(full)
            self._paused.update(full)

    def take_again(self, task: Task) -> None:
        """Resume what was paused and has room again."""
        if not self._paused:
            return
        free = [
            place
            for place in task.inputs
            if place in self._paused
            and task.queued_in(place) < self._config.buffered_records_per_partition
        ]
        if free:
            self._consumer.resume(free)
            self._paused.difference_update(free)

    def keep_to_running(self) -> None:
        """Forget what was paused of tasks that do not run any more, and how long others wait."""
        self._paused = {p for p in self._paused if self._tasks.reader_of(p) is not None}
        running = {task.id for task in self._tasks.running}
        self._waiting = {t: s for t, s in self._waiting.items() if t in running}
        self._idle_until_s = {
            p: s for p, s in self._idle_until_s.items() if self._tasks.reader_of(p) is not None
        }


_LAG_WAIT_S = 0.005
"""What a broker is known to have is there soon; markers pass without waking a poll."""
