"""Fetch control: the number of records to poll, paused partitions, and max.task.idle.ms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import Clock, Consumer, ReceivedMessage, TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.backpressure import RepartitionBackpressure
from headrace.streams.tasks.task import Task, lags_of
from headrace.streams.tasks.tasks import Tasks

LAG_WAIT_S = 0.005
"""Wait for records that a broker is known to have; markers pass without waking a poll."""


class InputWait:
    """Wait of a task with several inputs for an empty input (max.task.idle.ms)."""

    def __init__(self, config: StreamsConfig, consumer: Consumer, *, clock: Clock) -> None:
        self._config = config
        self._consumer = consumer
        self._clock = clock
        self._waiting: dict[TaskId, float] = {}
        """Tasks that wait for an empty input, with the end of the wait."""
        self._idle_until_s: dict[TopicPartition, float] = {}
        """Inputs without more records, with the end of the wait; removed when records arrive."""

    def must_wait(self, task: Task) -> bool:
        """Return whether earlier records may arrive, as `readyToProcess` in Kafka Streams.

        A task waits for an empty input while its lag is unknown or positive, and then for
        max.task.idle.ms from the moment when the input was first seen without more records, even
        while the task has no records itself.
        """
        if self._config.max_task_idle_ms < 0 or len(task.inputs) < 2:
            return False
        may_wait = task.queued() or self._config.max_task_idle_ms > 0
        wait_s = self._wait_s(task) if may_wait else 0.0
        if wait_s <= 0:
            self._waiting.pop(task.id, None)
            return False
        self._waiting[task.id] = self._clock.monotonic_s() + wait_s
        return True

    def refresh(self, task: Task) -> None:
        """Update the wait before a poll that queued records would limit to a single record."""
        if len(task.inputs) > 1 and task.queued() and task.empty_inputs():
            self.must_wait(task)

    def _wait_s(self, task: Task) -> float:
        empty = task.empty_inputs()
        for tp in task.inputs:
            if tp not in empty:
                self._idle_until_s.pop(tp, None)
        if not empty:
            return 0.0
        now_s = self._clock.monotonic_s()
        wait_s = 0.0
        for tp, lag in lags_of(task, self._consumer, empty).items():
            if lag != 0:
                self._idle_until_s.pop(tp, None)
                wait_s = max(wait_s, LAG_WAIT_S)
            else:
                idle_s = self._config.max_task_idle_ms / 1000
                until_s = self._idle_until_s.setdefault(tp, now_s + idle_s)
                wait_s = max(wait_s, until_s - now_s)
        return wait_s

    def is_waiting(self, task: Task) -> bool:
        return task.id in self._waiting

    def wait_s(self, tasks: Iterable[Task]) -> float | None:
        until_s = [self._waiting[task.id] for task in tasks if task.id in self._waiting]
        return max(0.0, min(until_s) - self._clock.monotonic_s()) if until_s else None

    def retain(self, running: Sequence[Task]) -> None:
        ids = {task.id for task in running}
        read = {tp for task in running for tp in task.inputs}
        self._waiting = {t: s for t, s in self._waiting.items() if t in ids}
        self._idle_until_s = {p: s for p, s in self._idle_until_s.items() if p in read}


# Number of records to poll, and pausing of partitions.
#
# Queued records reduce the number of records to poll, and full queues are paused.


WAITING_MAX_BYTES = 16 << 20
"""Approximate limit of queued bytes: the larger the records are, the fewer are polled."""


class FetchController:
    """Control of the number of records to poll and of paused partitions.

    Args:
        backpressure: pauses tasks that wait for the readers of their output.
    """

    def __init__(
        self,
        config: StreamsConfig,
        consumer: Consumer,
        tasks: Tasks,
        backpressure: RepartitionBackpressure,
        *,
        clock: Clock,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._tasks = tasks
        self._backpressure = backpressure
        self._inputs = InputWait(config, consumer, clock=clock)
        self._paused: set[TopicPartition] = set()
        self._record_bytes = 0

    def on_polled(self, batches: Mapping[TopicPartition, Sequence[ReceivedMessage]]) -> None:
        """Update the average record size from the last record of each batch."""
        sizes = [len(records[-1].value() or b"") for records in batches.values()]
        if sizes:
            size = sum(sizes) // len(sizes)
            # Decrease slowly, so that small records do not admit too many large ones.
            self._record_bytes = max(size, (self._record_bytes + size) // 2)

    def poll_limit(self) -> int:
        """Return the number of records to poll: the limit less queued records, but at least 1."""
        waiting = sum(
            task.queued_in(tp)
            for task in self._tasks.running
            # Records of a waiting task are limited by its own queues. They must not reduce the poll
            # because the records that it waits for come later in the client's queue.
            if not (self._backpressure.is_paused(task) or self._inputs.is_waiting(task))
            for tp in task.inputs
            if tp not in self._paused
        )
        return max(1, self._bounded(self._config.max_poll_records) - waiting)

    def _bounded(self, most: int) -> int:
        large = self._record_bytes * most > WAITING_MAX_BYTES
        return max(1, WAITING_MAX_BYTES // self._record_bytes) if large else most

    def must_wait(self, task: Task) -> bool:
        """Return whether a task must wait for input or for its readers; call it in each turn."""
        # Always evaluate both, because the time of each wait passes during the other.
        waits = self._inputs.must_wait(task)
        return self._backpressure.must_wait(task, self._inputs.is_waiting) or waits

    def wait_s(self) -> float | None:
        """Return how long a poll may wait if tasks wait, or None if no task waits."""
        running = self._tasks.running
        is_paused = any(map(self._backpressure.is_paused, running))
        return LAG_WAIT_S if is_paused else self._inputs.wait_s(running)

    def is_ready(self, task: Task) -> bool:
        return task.queued() > 0 and not (
            self._inputs.is_waiting(task) or self._backpressure.is_paused(task)
        )

    def pause_queues(self, task: Task) -> None:
        """Pause full queues of a waiting task, so that the records that it waits for can arrive."""
        most = self._bounded(self._config.buffered_records_per_partition)
        full = [p for p in task.inputs if p not in self._paused and task.queued_in(p) >= most]
        if full:
            self._consumer.pause(full)
            self._paused.update(full)

    def resume_queues(self, task: Task) -> None:
        """Resume paused partitions whose queues have space, and update whether the task waits."""
        self._inputs.refresh(task)
        if not self._paused:
            return
        most = self._bounded(self._config.buffered_records_per_partition)
        free = [p for p in task.inputs if p in self._paused and task.queued_in(p) < most]
        if free:
            self._consumer.resume(free)
            self._paused.difference_update(free)

    def resume_all(self) -> None:
        """Resume all partitions that are not paused because of full queues."""
        inputs = [tp for task in self._tasks.running for tp in task.inputs]
        self._consumer.resume([tp for tp in inputs if tp not in self._paused])

    def retain_running(self) -> None:
        self._paused = {p for p in self._paused if self._tasks.reader_of(p) is not None}
        self._inputs.retain(self._tasks.running)
