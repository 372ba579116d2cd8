"""Whether a task with several inputs waits for an empty one (max.task.idle.ms)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import Clock, Consumer, ReceivedMessage, TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.backpressure import RepartitionBackpressure
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks

LAG_WAIT_S = 0.005
"""What a broker is known to have is there soon; markers pass without waking a poll."""


class InputWait:
    """Wait of a task with several inputs for an empty one (max.task.idle.ms)."""

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


# How much a worker reads, and which tasks wait for more (max.task.idle.ms).
#
# What waits bounds what is asked for, and full queues are paused.


WAITING_MAX_BYTES = 16 << 20
"""About so much may wait in tasks: large records are asked for by fewer."""


class FetchController:
    """How much a worker reads, and which partitions are paused.

    Args:
        config: max.poll.records, buffered.records.per.partition and max.task.idle.ms.
        backlog: says which tasks wait for those who read what they write.
    """

    def __init__(
        self,
        config: StreamsConfig,
        consumer: Consumer,
        tasks: Tasks,
        backlog: RepartitionBackpressure,
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
