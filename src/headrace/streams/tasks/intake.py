"""How much a worker reads, and which tasks wait for more (max.task.idle.ms).

What waits bounds what is asked for, and full queues are paused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.seams.clients import Clock, Consumer, ReceivedMessage, TopicPartition
from headrace.streams.task.input_wait import LAG_WAIT_S, InputWait
from headrace.streams.task.task import Task
from headrace.streams.tasks.backlog import Backlog
from headrace.streams.tasks.tasks import Tasks

WAITING_MAX_BYTES = 16 << 20
"""About so much may wait in tasks: large records are asked for by fewer."""


class Intake:
    """See the module.

    Args:
        config: max.poll.records, buffered.records.per.partition and max.task.idle.ms.
        backlog: says which tasks wait for those who read what they write.
    """

    def __init__(
        self,
        config: StreamsConfig,
        consumer: Consumer,
        tasks: Tasks,
        backlog: Backlog,
        *,
        clock: Clock,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._tasks = tasks
        self._backlog = backlog
        self._inputs = InputWait(config, consumer, clock=clock)
        self._paused: set[TopicPartition] = set()
        self._record_bytes = 0

    def came(self, batches: Mapping[TopicPartition, Sequence[ReceivedMessage]]) -> None:
        """Take note of how large records are, from the last one of each batch."""
        sizes = [len(records[-1].value() or b"") for records in batches.values()]
        if sizes:
            size = sum(sizes) // len(sizes)
            # Small ones between large ones are not to let too many of these in.
            self._record_bytes = max(size, (self._record_bytes + size) // 2)

    def room(self) -> int:
        """How many records to ask for: what waits already counts, and a poll is due in any case."""
        waiting = sum(
            task.queued_in(place)
            for task in self._tasks.running
            # What a task that waits has is bounded by its own queues, and others are not to go
            # short for it: what it waits for is behind it in the client's line.
            if not (self._backlog.is_held(task) or self._inputs.is_waiting(task))
            for place in task.inputs
            if place not in self._paused
        )
        return max(1, self._bounded(self._config.max_poll_records) - waiting)

    def _bounded(self, most: int) -> int:
        """So many records, or as many as make about WAITING_MAX_BYTES."""
        large = self._record_bytes * most > WAITING_MAX_BYTES
        return max(1, WAITING_MAX_BYTES // self._record_bytes) if large else most

    def must_wait(self, task: Task) -> bool:
        """Whether a task is to wait for its own input, or for the readers of its output.

        To be asked in each turn, whether the task has records or not.
        """
        # Both are asked: time passes for either while the other is waited for.
        waits = self._inputs.must_wait(task)
        return self._backlog.holds(task, self._inputs.is_waiting) or waits

    def wait_s(self) -> float | None:
        """How long a poll may wait for what tasks wait for; None where none waits."""
        running = self._tasks.running
        held = any(map(self._backlog.is_held, running))
        return LAG_WAIT_S if held else self._inputs.wait_s(running)

    def is_ready(self, task: Task) -> bool:
        """Whether a task has records, and did not have to wait when it was last asked for."""
        return task.queued() > 0 and not (
            self._inputs.is_waiting(task) or self._backlog.is_held(task)
        )

    def hold_back(self, task: Task) -> None:
        """Pause full queues of a task that waits, so that what it waits for can arrive."""
        most = self._bounded(self._config.buffered_records_per_partition)
        full = [p for p in task.inputs if p not in self._paused and task.queued_in(p) >= most]
        if full:
            self._consumer.pause(full)
            self._paused.update(full)

    def take_again(self, task: Task) -> None:
        """Resume what was paused and has room again, and note whether the task waits now."""
        self._inputs.look_again(task)
        if not self._paused:
            return
        most = self._bounded(self._config.buffered_records_per_partition)
        free = [p for p in task.inputs if p in self._paused and task.queued_in(p) < most]
        if free:
            self._consumer.resume(free)
            self._paused.difference_update(free)

    def resume_all(self) -> None:
        """Read on everywhere, but where queues are full."""
        inputs = [place for task in self._tasks.running for place in task.inputs]
        self._consumer.resume([place for place in inputs if place not in self._paused])

    def keep_to_running(self) -> None:
        """Forget what was paused of tasks that do not run any more, and how long others wait."""
        self._paused = {p for p in self._paused if self._tasks.reader_of(p) is not None}
        self._inputs.keep_to(self._tasks.running)
