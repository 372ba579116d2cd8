"""How much a worker reads: what waits bounds what is asked for, and full queues are paused."""

from __future__ import annotations

from streams.clients import Consumer, TopicPartition
from streams.config import StreamsConfig
from streams.task import Task
from streams.tasks import Tasks


class Intake:
    """See the module.

    Args:
        config: max.poll.records, buffered.records.per.partition and max.task.idle.ms.
        consumer: of the group.
        tasks: of the worker.
    """

    def __init__(self, config: StreamsConfig, consumer: Consumer, tasks: Tasks) -> None:
        self._config = config
        self._consumer = consumer
        self._tasks = tasks
        self._paused: set[TopicPartition] = set()

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
        """Whether records with lower timestamps may be on the broker (max.task.idle.ms)."""
        if self._config.max_task_idle_ms < 0:
            return False
        empty = task.empty_inputs()
        if not empty:
            return False
        # The position passes markers and aborted records: nothing will ever come of those.
        positions = self._consumer.positions(empty)
        return any(
            self._consumer.lag(place, max(positions.get(place, 0), task.next_offset[place]))
            for place in empty
        )

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
        """Forget what was paused of tasks that do not run any more."""
        self._paused = {p for p in self._paused if self._tasks.reader_of(p) is not None}
