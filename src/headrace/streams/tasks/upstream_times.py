"""Event time of upstream tasks: the watermark of tasks that read repartition topics.

Upstream tasks read at different speeds, especially with a backlog. A task that reads their output
uses the time of the slowest upstream task as its stream time. So a record that was in order at its
source is not late after the repartition topic:

    1  read the committed offsets of the upstream inputs, with the time in their metadata
    2  then read the ends of these inputs, and of the repartition topics
    3  once a task has read up to these ends, the minimum of these times is its watermark

All output of an upstream task before a commit is before an end that is read after the commit, so it
has been processed by then. Later output of the task comes from records that are not before its
time. The end is the high watermark, not the last stable offset, because the offsets of a
transaction may be visible before its records are.

An input without more records is idle. After max.task.idle.ms it no longer limits the watermark. An
input whose worker is dead has more records: it is behind, not idle. If all inputs are idle, the
latest time counts.

The time of an input that is a repartition topic itself is its own watermark. It advances without
records, so such an input is never idle. The time of a task is also limited to the oldest result
that it delays, as windows do that emit on close.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headrace.streams.errors import StreamsError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import Clock, CommittedOffset, Consumer, Log, TopicPartition
from headrace.streams.metrics.snapshots import skew_of
from headrace.streams.plan.flow import Upstream
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import HELD, SHIFT, WATERMARK, OffsetMetadata
from headrace.streams.tasks.background_request import BackgroundRequest
from headrace.streams.tasks.task import Task, lags_of
from headrace.streams.tasks.tasks import Tasks
from headrace.topology.context.punctuation import NEVER_MS

INTERVAL_S = 0.2
"""Seconds between two requests to the cluster while tasks wait for their watermark."""
INPUTS = 200
"""Number of upstream inputs above which the interval is longer, because each input takes time to
read."""
QUIET_INTERVALS = (5, 25)
"""Number of intervals between two requests while nothing changes: at first, and later."""
QUIET_ANSWERS = 10
"""Number of equal answers after which the longer of these intervals is used."""
MARKS_MAX = 16
"""Maximum number of pending marks of a partition; above it, every second mark is dropped."""

UNFOLLOWED_S = 30.0
"""Seconds without a committed watermark before a member counts as having another stream.time."""
_DIFFERS = (
    "workers of another version, or with stream.time=fastest, read these partitions and may drop "
    "records as late; give all workers the same stream.time"
)

Committed = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]
Offsets = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class InputTime:
    """Event time and progress of an upstream input, as committed.

    Args:
        time: its event time in milliseconds, or -1.
        has_more: whether it has records left to read.
        is_watermark: whether the time advances without records.
        held: by repartition topic: the earliest time of delayed results.
        shifts: by repartition topic: how much earlier results are than their records.
    """

    time: int
    has_more: bool
    is_watermark: bool = False
    held: Mapping[str, int] = field(default_factory=dict)
    shifts: Mapping[str, int] = field(default_factory=dict)

    def of(self, topic: str) -> int:
        """Return the time before which no more records come to a repartition topic."""
        return min(self.time, self.held.get(topic, self.time)) - self.shifts.get(topic, 0)


@dataclass(frozen=True, slots=True)
class UpstreamSnapshot:
    """Times of upstream inputs, and the end offsets that were read after them.

    Args:
        unfollowed: partitions of repartition topics whose readers commit no watermark.
    """

    inputs: Mapping[TopicPartition, InputTime]
    ends: Mapping[TopicPartition, int]
    unfollowed: Sequence[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A watermark that takes effect when a repartition partition is read up to an end offset.

    Args:
        time: the watermark.
        is_least: whether the watermark is at least the latest timestamp read, because all inputs
            are idle.
        has_more: whether an upstream input has more records to read.
    """

    time: int
    is_least: bool
    has_more: bool
    end: int


def mark_of(
    inputs: Mapping[TopicPartition, InputTime],
    idle: Collection[TopicPartition],
    *,
    topic: str = "",
) -> Mark:
    """Return the watermark of a repartition topic, for an end of 0; `idle` inputs do not limit it.

    >>> slow, fast = TopicPartition("orders", 0), TopicPartition("orders", 1)
    >>> inputs = {slow: InputTime(10, has_more=True), fast: InputTime(90, has_more=True)}
    >>> mark_of(inputs, []).time, mark_of(inputs, [slow]).time
    (10, 90)
    """
    has_more = not all(tp in idle for tp in inputs)
    times = {tp: input_time.of(topic) for tp, input_time in inputs.items()}
    active = [times[p] for p, t in inputs.items() if t.is_watermark or p not in idle]
    if active:
        return Mark(min(active), is_least=False, has_more=has_more, end=0)
    return Mark(max(times.values(), default=-1), is_least=True, has_more=has_more, end=0)


class Marks:
    """Pending marks of a repartition partition, in the order of their end offsets."""

    def __init__(self) -> None:
        self._waiting: deque[Mark] = deque()
        self.has_more = True
        """Whether an upstream input had more records to read, according to the last reached mark.
        """

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, mark: Mark) -> None:
        if len(self._waiting) >= MARKS_MAX:
            self._waiting = deque(list(self._waiting)[1::2])
        self._waiting.append(mark)

    def reached(self, position: int, latest: int) -> int:
        """Return the watermark at the next offset to process, or -1 if no mark is reached."""
        watermark = -1
        while self._waiting and self._waiting[0].end <= position:
            mark = self._waiting.popleft()
            self.has_more = mark.has_more
            watermark = max(watermark, mark.time, latest if mark.is_least else -1)
        return watermark


@dataclass(slots=True)
class _PendingMarks:
    """Pending marks of a task by input; replaced with the task object."""

    task: Task
    marks: Mapping[TopicPartition, Marks]

    def positions(self, consumer: Consumer) -> Mapping[TopicPartition, int]:
        waiting = [tp for tp, marks in self.marks.items() if marks]
        if not waiting:
            return {}
        task = self.task
        positions = {tp: task.next_offset[tp] for tp in waiting}
        # The position is past control records and aborted records.
        known = consumer.positions([tp for tp in waiting if not task.queued_in(tp)])
        return {p: max(offset, known.get(p, offset)) for p, offset in positions.items()}


class UpstreamTimes:
    """Watermarks of tasks that read repartition topics, by committed times of upstream tasks.

    Args:
        upstream: the upstream inputs; empty if stream.time is "fastest".
        committed: returns committed offsets without waiting for open transactions.
        end_offsets: returns the end offsets of partitions, including records of open transactions.
        idle_s: seconds without more records after which an input is idle.
        interval_s: minimum seconds between two requests.
    """

    def __init__(
        self,
        upstream: Upstream,
        consumer: Consumer,
        tasks: Tasks,
        *,
        partitions: Mapping[str, int],
        committed: Committed,
        end_offsets: Offsets,
        start_offsets: Offsets,
        idle_s: float,
        interval_s: float,
        background: Background,
        clock: Clock,
        log: Log,
    ) -> None:
        self._upstream = upstream
        self._consumer = consumer
        self._tasks = tasks
        self._partitions = partitions
        self._committed = committed
        self._end_offsets = end_offsets
        self._start_offsets = start_offsets
        self._idle_s = max(0.0, idle_s)
        self._interval_s = interval_s
        self._clock = clock
        self._log = log
        self._request = BackgroundRequest[UpstreamSnapshot | None](background)
        self._followed: dict[TaskId, _PendingMarks] = {}
        self._requested_s = -math.inf
        self._quiet = 0
        """Number of equal answers in a row."""
        self._unfollowed_since_s: float | None = None
        """Time since which other members commit no watermark; infinite after it was logged."""
        self._unknown = ""
        """The last logged reason for a missing answer."""
        self._idle_since_s: dict[TopicPartition, float] = {}
        self._drained_since_s: dict[TopicPartition, float] = {}
        """By input without a watermark: since when it is read to its end."""
        self.inputs: Mapping[TopicPartition, InputTime] = {}
        """Last known time and progress of the upstream inputs."""

    def turn(self) -> list[tuple[Task, Mapping[TopicPartition, int], int]]:
        """Return the tasks whose time advances: watermarks by input, and the limit of the rest."""
        if not self._upstream.writers:
            return []
        self._retain(self._tasks.running)
        if not self._followed:
            return []
        self._apply_answer()
        self._request_if_due()
        advancing: list[tuple[Task, Mapping[TopicPartition, int], int]] = []
        for one in self._followed.values():
            task, times = one.task, self._reached(one)
            if not times and task.watermark <= task.context.watermark:
                continue  # nothing is held back, so the limit makes no difference
            limit = self._limit(task)
            if times or min(task.watermark, limit) > task.context.watermark:
                advancing.append((task, times, limit))
        return advancing

    def _limit(self, task: Task) -> int:
        """Return the lowest time of the task's inputs without a watermark that have more records.

        An input that is read to its end limits the time until it has been so for max.task.idle.ms.
        """
        now_s, limit = self._clock.monotonic_s(), NEVER_MS
        unfollowed = task.unfollowed if task.is_time_bounded else ()
        if not unfollowed:
            return limit
        for tp, lag in lags_of(task, self._consumer, unfollowed).items():
            if task.queued_in(tp) or lag != 0:
                self._drained_since_s.pop(tp, None)
            elif now_s - self._drained_since_s.setdefault(tp, now_s) >= self._idle_s:
                continue
            limit = min(limit, task.partition_time[tp])
        return limit

    def is_behind(self, task: Task) -> bool:
        """Return whether upstream inputs of a task may have more records to read."""
        followed = self._followed.get(task.id)
        return followed is not None and any(marks.has_more for marks in followed.marks.values())

    def _retain(self, running: Sequence[Task]) -> None:
        known = self._followed
        self._followed = {}
        for task in running:
            if task.followed:
                one = known.get(task.id)
                if one is None or one.task is not task:
                    one = _PendingMarks(task, {tp: Marks() for tp in task.watermarks})
                self._followed[task.id] = one

    def _reached(self, one: _PendingMarks) -> dict[TopicPartition, int]:
        task, times = one.task, {}
        for tp, position in one.positions(self._consumer).items():
            time = one.marks[tp].reached(position, task.partition_time[tp])
            if time > task.watermarks[tp]:
                times[tp] = time
        return times

    # -- requests to the cluster ---------------------------------------------------------------

    def _request_if_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._request.is_pending or now_s - self._requested_s < self._wait_s():
            return
        self._requested_s = now_s
        own = [tp for one in self._followed.values() for tp in one.marks]
        inputs = dict.fromkeys(
            tp
            for topic in dict.fromkeys(tp.topic for tp in own)
            for tp in self._upstream.writers[topic].inputs(self._partitions)
        )
        alike = [
            TopicPartition(topic, partition)
            for topic in dict.fromkeys(tp.topic for tp in own)
            for partition in range(self._partitions[topic])
        ]
        self._request.submit(partial(self._request_times, list(inputs), own, alike))
        self._apply_answer()

    def _wait_s(self) -> float:
        interval_s = self._interval_s * max(1.0, len(self.inputs) / INPUTS)
        if not self._quiet or any(one.task.moved for one in self._followed.values()):
            return interval_s
        return interval_s * QUIET_INTERVALS[self._quiet > QUIET_ANSWERS]

    def _apply_answer(self) -> None:
        answer = self._request.poll() if self._request.is_pending else None
        if answer is None:
            return
        now_s = self._clock.monotonic_s()
        self._quiet = self._quiet + 1 if answer.inputs == self.inputs else 0
        self.inputs = answer.inputs
        self._warn_of_other_setting(answer.unfollowed, now_s)
        idle = self._idle(now_s)
        self._report_skew(idle)
        by_topic: dict[str, Mark] = {}
        for one in self._followed.values():
            for tp, marks in one.marks.items():
                if tp not in answer.ends:
                    continue
                if tp.topic not in by_topic:
                    by_topic[tp.topic] = self._mark(tp.topic, answer, idle)
                marks.add(replace(by_topic[tp.topic], end=answer.ends[tp]))

    def _warn_of_other_setting(self, unfollowed: Sequence[TopicPartition], now_s: float) -> None:
        """Warn about members with another stream.time, if they do not commit a watermark soon."""
        if not unfollowed:
            self._unfollowed_since_s = None
        elif self._unfollowed_since_s is None:
            self._unfollowed_since_s = now_s
        elif 0 <= now_s - self._unfollowed_since_s - UNFOLLOWED_S < math.inf:
            self._unfollowed_since_s = math.inf
            self._log.warning(
                "stream_time_differs", partitions=list(map(str, unfollowed)), advice=_DIFFERS
            )

    def _report_skew(self, idle: Collection[TopicPartition]) -> None:
        idle_names = set(map(str, idle))
        for topic in {tp.topic for one in self._followed.values() for tp in one.marks}:
            inputs = self._upstream.writers[topic].inputs(self._partitions)
            times = {str(tp): self.inputs[tp].time for tp in inputs if tp in self.inputs}
            self._tasks.skews[topic] = skew_of(times, idle_names)

    def _mark(self, topic: str, answer: UpstreamSnapshot, idle: Collection[TopicPartition]) -> Mark:
        writers = self._upstream.writers[topic]
        inputs = writers.inputs(self._partitions)
        known = {tp: answer.inputs[tp] for tp in inputs if tp in answer.inputs}
        return mark_of(known, idle, topic=writers.name)

    def _idle(self, now_s: float) -> frozenset[TopicPartition]:
        quiet = [tp for tp, input_time in self.inputs.items() if not input_time.has_more]
        self._idle_since_s = {tp: self._idle_since_s.get(tp, now_s) for tp in quiet}
        return frozenset(
            p for p, since_s in self._idle_since_s.items() if now_s - since_s >= self._idle_s
        )

    def _request_times(
        self,
        inputs: Sequence[TopicPartition],
        own: Sequence[TopicPartition],
        alike: Sequence[TopicPartition],
    ) -> UpstreamSnapshot | None:
        """Request times and ends in the background; `alike` are all partitions of `own` topics."""
        try:
            committed = self._committed(dict.fromkeys((*inputs, *alike)))
            ends = self._end_offsets([*inputs, *own])
            unread = [tp for tp in inputs if tp not in committed]
            starts = self._start_offsets(unread) if unread else {}
        except StreamsError as error:
            # The watermark does not advance until a later request succeeds.
            if str(error) != self._unknown:
                self._unknown = str(error)
                self._log.info("upstream_times_unknown", reason=self._unknown)
            return None
        self._unknown = ""
        input_times = {}
        for tp in inputs:
            if tp in committed:
                input_times[tp] = _input_time(committed[tp], ends[tp])
            else:
                input_times[tp] = InputTime(-1, has_more=starts[tp] < ends[tp])
        unfollowed = [p for p in alike if p in committed and _is_unfollowed(committed[p])]
        return UpstreamSnapshot(input_times, {tp: ends[tp] for tp in own}, unfollowed)


def _input_time(committed: CommittedOffset, end: int) -> InputTime:
    progress = OffsetMetadata.decode(committed.metadata)
    return InputTime(
        progress.event_time,
        has_more=committed.offset < end,
        is_watermark=WATERMARK in progress.values,
        held=_by_topic(progress, HELD),
        shifts=_by_topic(progress, SHIFT),
    )


def _is_unfollowed(committed: CommittedOffset) -> bool:
    progress = OffsetMetadata.decode(committed.metadata)
    return progress.partition_time >= 0 and WATERMARK not in progress.values


def _by_topic(progress: OffsetMetadata, number: str) -> dict[str, int]:
    prefix = f"{number}."
    values = progress.values.items()
    return {name.removeprefix(prefix): n for name, n in values if name.startswith(prefix)}
