"""Backpressure from readers to writers of repartition topics.

A task that writes to a repartition topic pauses while a partition of that topic has more than
repartition.lag.max.records unprocessed records. It resumes when the lag has fallen to half of that.
Without backpressure a worker with a large backlog would read all of it before it aggregates
anything.

A background thread asks the cluster for end offsets because fetch responses report them late. For
partitions that other workers read, it also asks for the offsets that the group has committed.
Between two answers, writing tasks may read only a part of the limit because the effect of these
records is not visible yet. No task waits forever: a reader that waits for input itself does not
cause backpressure. A reader that makes no progress for a while may fall further behind, because the
records that it waits for may be the ones that are paused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import Clock, Consumer, Log, TopicPartition
from headrace.streams.plan.flow import RepartitionFlow
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.background_request import BackgroundRequest
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks

CHECK_S = 0.005
"""Seconds between two checks whether a topic is full."""
REQUEST_S = 0.25
"""Minimum seconds between two requests for committed offsets while writers have read little."""
INVISIBLE_PER_LAG = 4
"""Writers may read the limit divided by this number before they wait for the next answer."""
REQUESTED_PER_LAG = 100
"""Writers must read the limit divided by this number before an idle check is worth a request."""
AWAITED_PER_LAG = 4
"""A reader commits early after the limit divided by this number of records, if other workers depend
on its committed offsets."""
STALLED_S = 5.0
"""Seconds after which a stalled reader or an overdue answer no longer causes backpressure."""

Offsets = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]
Answer = Mapping[TopicPartition, "tuple[int, int | None]"]
"""End offset of each partition, and the committed offset if another worker reads the partition."""


@dataclass(slots=True)
class _ReaderProgress:
    """Progress of the reader of a partition."""

    position: int
    since_s: float
    extra_lag: int = 0
    """Additional lag that this reader may have because it is stalled."""


class RepartitionBackpressure:
    """Backpressure between the writers and the readers of repartition topics.

    Args:
        is_ahead: returns whether a task must wait because it is ahead of other tasks in event time.
        committed: returns committed offsets without waiting for open transactions.
    """

    def __init__(
        self,
        config: StreamsConfig,
        flow: RepartitionFlow,
        consumer: Consumer,
        tasks: Tasks,
        *,
        is_ahead: Callable[[Task], bool] = lambda _: False,
        partitions: Mapping[str, int],
        end_offsets: Offsets,
        committed: Offsets,
        background: Background,
        clock: Clock,
        log: Log,
    ) -> None:
        self._limit = config.repartition_lag_max_records
        self._exactly_once = config.exactly_once
        self._flow = flow
        self._limited_topics = {
            sub: topics
            for sub, topics in flow.feeds.items()
            # A writer that waits for one of several topics sends nothing to the other topics, and
            # window.close.idle.ms would close the windows of their readers.
            if topics and self._limit and (len(topics) == 1 or not config.window_close_idle_ms)
        }
        self._is_ahead = is_ahead
        self._consumer = consumer
        self._tasks = tasks
        self._partitions = partitions
        self._end_offsets = end_offsets
        self._committed = committed
        self._clock = clock
        self._log = log
        self._request = BackgroundRequest[Answer](background)
        self._full: dict[str, bool] = {}
        self._next_check_s: dict[str, float] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._remote_offsets: dict[TopicPartition, int] = {}
        """Committed offset of each partition that no running task of this worker reads."""
        self._checked: dict[str, Sequence[TopicPartition]] = {}
        self._unknown: dict[str, Sequence[TopicPartition]] = {}
        """By topic: the partitions that no running task of this worker reads."""
        self._readers: dict[TopicPartition, _ReaderProgress] = {}
        self._paused: set[TaskId] = set()
        self._invisible_max = max(1, self._limit // INVISIBLE_PER_LAG)
        self._read = 0
        """Number of records that writing tasks have read."""
        self._read_when_requested = 0
        self._read_and_visible = 0
        """Number of these records that were read before the last answered request."""
        self._requested_s = 0.0
        self._next_request_s = 0.0

    # -- paused tasks --------------------------------------------------------------------------

    def downstream_first(self, tasks: Sequence[Task]) -> list[Task]:
        """Sort downstream tasks first."""
        depths = self._flow.depths
        return sorted(tasks, key=lambda task: depths[task.id.sub_topology])

    def is_limited(self, task: Task) -> bool:
        """Return whether a task writes to a repartition topic with a lag limit."""
        return task.id.sub_topology in self._limited_topics

    def must_wait(self, task: Task, waiting: Callable[[Task], bool]) -> bool:
        """Return whether a task must wait for the readers of its output; call it in each turn."""
        topics = self._limited_topics.get(task.id.sub_topology, ())
        # Check every topic, because each check also updates whether the topic is full.
        must_wait = bool([topic for topic in topics if self._is_full(topic, waiting)])
        must_wait = self._is_ahead(task) or must_wait
        (self._paused.add if must_wait else self._paused.discard)(task.id)
        return must_wait

    def is_paused(self, task: Task) -> bool:
        return task.id in self._paused

    def add_read(self, task: Task, count: int) -> None:
        if self.is_limited(task):
            self._read += count

    def max_records(self, task: Task) -> int:
        """Return the number of records that a task may process before the next `must_wait`."""
        if not self.is_limited(task):
            return sys.maxsize
        return max(1, self._invisible_max - (self._read - self._read_and_visible))

    # -- early commits -------------------------------------------------------------------------

    def needs_commit(self) -> bool:
        """Return whether a task waits for readers that cannot see its uncommitted records."""
        return (
            self._exactly_once
            and bool(self._paused)
            and any(task.moved and self._waits_for_readers(task) for task in self._tasks.running)
        )

    def _waits_for_readers(self, task: Task) -> bool:
        topics = self._limited_topics.get(task.id.sub_topology, ())
        return task.id in self._paused and any(self._full.get(topic, False) for topic in topics)

    def is_awaited(self, tasks: Sequence[Task]) -> bool:
        """Return whether another worker may wait for the committed offsets of these tasks."""
        many = self._limit / AWAITED_PER_LAG
        for task in tasks if self._limit else ():
            for tp, committed in task.start.items():
                writers = self._flow.writers.get(tp.topic)
                if not writers or task.next_offset[tp] - committed.offset < many:
                    continue
                if not all(map(self._tasks.has_all_of, writers)):
                    return True
        return False

    # -- lag of readers ------------------------------------------------------------------------

    def _is_full(self, topic: str, waiting: Callable[[Task], bool]) -> bool:
        now_s = self._clock.monotonic_s()
        was_full = self._full.get(topic, False)
        soon = now_s < self._next_check_s.get(topic, now_s)
        if soon and not was_full and not self._lacks_offsets(now_s):
            return False
        self._next_check_s[topic] = now_s + CHECK_S
        limit = self._limit // 2 if was_full else self._limit
        tps = [TopicPartition(topic, p) for p in range(self._partitions[topic])]
        full, unknown = False, []
        for tp in tps:
            reader = self._tasks.reader_of(tp)
            if reader is None:
                unknown.append(tp)
                continue
            self._remote_offsets.pop(tp, None)
            if waiting(reader):
                self._readers.pop(tp, None)
            else:
                full = self._is_behind(tp, *self._lag_here(tp, reader), limit) or full
        self._checked[topic], self._unknown[topic] = tps, unknown
        self._request_if_due(now_s)
        for tp in unknown:
            position = self._remote_offsets.get(tp)
            if position is not None:
                lag = max(0, self._ends[tp] - position)
                full = self._is_behind(tp, lag, position, limit) or full
        self._full[topic] = full
        return full or self._lacks_offsets(now_s)

    def _lacks_offsets(self, now_s: float) -> bool:
        """Return whether writers have read as much as they may before the next answer."""
        if self._read - self._read_and_visible < self._invisible_max:
            return False
        return not self._request.is_pending or now_s - self._requested_s < STALLED_S

    def _lag_here(self, tp: TopicPartition, reader: Task) -> tuple[int, int]:
        # The position is past control records and aborted records, which are never delivered.
        position = self._consumer.positions([tp]).get(tp, 0)
        position = max(position, reader.next_offset[tp])
        queued = reader.queued_in(tp)
        fetched = self._consumer.lag(tp, position) or 0
        lag = max(fetched, self._ends.get(tp, 0) - position)
        return lag + queued, position - queued

    def _is_behind(self, tp: TopicPartition, lag: int, position: int, limit: int) -> bool:
        now_s = self._clock.monotonic_s()
        reader = self._readers.get(tp)
        if reader is None or reader.position != position or lag <= limit:
            reader = self._readers[tp] = _ReaderProgress(position, now_s)
        elif lag > limit + reader.extra_lag and now_s - reader.since_s >= STALLED_S:
            reader.since_s, reader.extra_lag = now_s, lag
            self._log.info("repartition_reader_stalled", partition=str(tp), lag=lag)
        return lag > limit + reader.extra_lag

    # -- requests to the cluster ---------------------------------------------------------------

    def _request_if_due(self, now_s: float) -> None:
        if not self._request.is_pending and self._is_request_useful(now_s):
            self._read_when_requested, self._requested_s = self._read, now_s
            tps = [tp for checked in self._checked.values() for tp in checked]
            unknown = [tp for tps in self._unknown.values() for tp in tps]
            self._request.submit(partial(self._request_offsets, tps, unknown))
        if self._request.is_pending and (offsets := self._request.poll()) is not None:
            self._read_and_visible = self._read_when_requested
            self._next_request_s = now_s + REQUEST_S
            for tp, (end, committed) in offsets.items():
                self._ends[tp] = end
                if committed is not None:
                    self._remote_offsets[tp] = committed

    def _is_request_useful(self, now_s: float) -> bool:
        invisible = self._read - self._read_and_visible
        if 2 * invisible >= self._invisible_max:
            return True
        if now_s < self._next_request_s or not any(self._unknown.values()):
            return False
        return any(self._full.values()) or invisible * REQUESTED_PER_LAG >= self._limit

    def _request_offsets(
        self, tps: Sequence[TopicPartition], unknown: Sequence[TopicPartition]
    ) -> Answer:
        """Request the offsets in the background."""
        try:
            ends = self._end_offsets(tps)
            committed = self._committed(unknown) if unknown else {}
        except StreamsError as error:
            # The request is repeated later; assume no lag until then, so that no task waits.
            self._log.info("lag_unknown", reason=str(error))
            return dict.fromkeys(unknown, (0, 0))
        read_here = set(tps).difference(unknown)
        return {p: (ends[p], None if p in read_here else committed.get(p, 0)) for p in tps}
