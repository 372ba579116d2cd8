"""How far readers of repartition topics are behind the writers, and who waits for whom.

A task that writes to a repartition topic pauses while a partition of it has more unprocessed
records than repartition.lag.max.records, and goes on at half of that. Else a worker with much to
read would read it all before it counts anything.

The lag of partitions that are read here is known from fetches. That of others is asked for beside
the worker: their ends, and what the group has committed. Nobody waits for ever: a reader that waits
for records itself holds nobody up, and one that gets nowhere for a while is allowed to get further
behind, as what it waits for may be what is held up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import StreamsError
from headrace.streams.plan.flow import Flow
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.background import Background
from headrace.streams.seams.clients import Clock, Consumer, Log, TopicPartition
from headrace.streams.task.task import Task
from headrace.streams.tasks.inquiry import Inquiry
from headrace.streams.tasks.tasks import Tasks

LOOK_S = 0.005
"""How long it may be unnoticed that a topic is full."""
ASK_S = 0.25
"""The least time between two questions to the cluster."""
ASKED_PER_LAG = 100
"""A question is worth it after this part of the bound was read by those who write."""
AWAITED_PER_LAG = 4
"""A reader commits after this part of the bound, where others can only see what is committed."""
PATIENCE_S = 5.0
"""How long a reader may stand where it is before it holds nobody up."""

Offsets = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]
Lags = Mapping[TopicPartition, "tuple[int, int]"]
"""The lag of partitions, and where their readers are."""


@dataclass(slots=True)
class _Reader:
    """How a partition's reader gets on."""

    stands_at: int
    since_s: float
    more: int = 0
    """By how much it may be further behind than others."""


class Backlog:
    """See the module.

    Args:
        partitions: the partition count of each topic.
        end_offsets: asks for the ends of partitions.
        committed: asks what the group has committed, without waiting for what is undecided.
    """

    def __init__(
        self,
        config: StreamsConfig,
        flow: Flow,
        consumer: Consumer,
        tasks: Tasks,
        *,
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
        self._feeds = {
            sub: topics
            for sub, topics in flow.feeds.items()
            # Whoever waits for one reader would keep records from the others, whose windows are
            # closed for want of them.
            if topics and self._limit and (len(topics) == 1 or not config.window_close_idle_ms)
        }
        self._consumer = consumer
        self._tasks = tasks
        self._partitions = partitions
        self._end_offsets = end_offsets
        self._committed = committed
        self._clock = clock
        self._log = log
        self._inquiry = Inquiry[Lags](background)
        self._full: dict[str, bool] = {}
        self._look_s: dict[str, float] = {}
        self._elsewhere: dict[TopicPartition, tuple[int, int]] = {}
        self._unknown: dict[str, Sequence[TopicPartition]] = {}
        """The partitions of each topic that no running task reads here."""
        self._readers: dict[TopicPartition, _Reader] = {}
        self._held: set[TaskId] = set()
        self._read = 0
        """How many records were read by those who write, since the cluster was asked last."""
        self._ask_s = 0.0

    # -- who waits -----------------------------------------------------------------------------

    def nearest_first(self, tasks: Sequence[Task]) -> list[Task]:
        """Tasks in the order in which they have their turns: those first that make results."""
        depths = self._flow.depths
        return sorted(tasks, key=lambda task: depths[task.id.sub_topology])

    def feeds(self, task: Task) -> bool:
        """Whether a task writes what is bounded."""
        return task.id.sub_topology in self._feeds

    def holds(self, task: Task, waiting: Callable[[Task], bool]) -> bool:
        """Whether a task is to wait for those who read what it writes; to be asked in each turn.

        Args:
            waiting: whether a reader waits for records that may come.
        """
        topics = self._feeds.get(task.id.sub_topology, ())
        # All of them are looked at: each is to be noticed when it has room again.
        held = bool([topic for topic in topics if self._is_full(topic, waiting)])
        (self._held.add if held else self._held.discard)(task.id)
        return held

    def is_held(self, task: Task) -> bool:
        """Whether a task had to wait when it was last asked for."""
        return task.id in self._held

    def has_read(self, task: Task, count: int) -> None:
        """A task has processed records."""
        if self.feeds(task):
            self._read += count

    # -- what must be committed for it ---------------------------------------------------------

    def wants_commit(self) -> bool:
        """Whether a task waits for those who cannot read yet what it wrote."""
        return (
            self._exactly_once
            and bool(self._held)
            and any(task.moved and task.id in self._held for task in self._tasks.running)
        )

    def is_awaited(self, tasks: Sequence[Task]) -> bool:
        """Whether another worker may wait for these tasks, and knows what is committed alone."""
        many = self._limit / AWAITED_PER_LAG
        for task in tasks if self._limit else ():
            for place, committed in task.start.items():
                writers = self._flow.writers.get(place.topic)
                if not writers or task.next_offset[place] - committed.offset < many:
                    continue
                if not all(map(self._tasks.has_all_of, writers)):
                    return True
        return False

    # -- how far readers are behind ------------------------------------------------------------

    def _is_full(self, topic: str, waiting: Callable[[Task], bool]) -> bool:
        now_s = self._clock.monotonic_s()
        was_full = self._full.get(topic, False)
        if not was_full and now_s < self._look_s.get(topic, now_s):
            return False
        self._look_s[topic] = now_s + LOOK_S
        limit = self._limit // 2 if was_full else self._limit
        places = [TopicPartition(topic, p) for p in range(self._partitions[topic])]
        full, unknown = False, []
        for place in places:
            reader = self._tasks.reader_of(place)
            if reader is None:
                unknown.append(place)
                continue
            self._elsewhere.pop(place, None)
            if waiting(reader):
                self._readers.pop(place, None)
            else:
                full = self._is_behind(place, *self._lag_here(place, reader), limit) or full
        self._unknown[topic] = unknown
        self._ask()
        for place in unknown:
            if place in self._elsewhere:
                full = self._is_behind(place, *self._elsewhere[place], limit) or full
        self._full[topic] = full
        return full

    def _lag_here(self, place: TopicPartition, reader: Task) -> tuple[int, int]:
        # The position passes markers and aborted records: nothing will ever come of those.
        position = self._consumer.positions([place]).get(place, 0)
        stands_at = max(position, reader.next_offset[place])
        queued = reader.queued_in(place)
        return (self._consumer.lag(place, stands_at) or 0) + queued, stands_at - queued

    def _is_behind(self, place: TopicPartition, lag: int, stands_at: int, limit: int) -> bool:
        now_s = self._clock.monotonic_s()
        reader = self._readers.get(place)
        if reader is None or reader.stands_at != stands_at or lag <= limit:
            reader = self._readers[place] = _Reader(stands_at, now_s)
        elif lag > limit + reader.more and now_s - reader.since_s >= PATIENCE_S:
            reader.since_s, reader.more = now_s, lag
            self._log.info("reader_stands_still", partition=str(place), lag=lag)
        return lag > limit + reader.more

    # -- partitions that are read elsewhere ----------------------------------------------------

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s()
        places = [place for unknown in self._unknown.values() for place in unknown]
        is_worth_it = any(self._full.values()) or self._read * ASKED_PER_LAG >= self._limit
        if not self._inquiry.is_open and places and is_worth_it and now_s >= self._ask_s:
            self._read = 0
            self._inquiry.ask(partial(self._look_beyond, places))
        if self._inquiry.is_open and (found := self._inquiry.take()) is not None:
            self._elsewhere.update(found)
            self._ask_s = now_s + ASK_S

    def _look_beyond(self, places: Sequence[TopicPartition]) -> Lags:
        """Ask the cluster; runs beside the worker."""
        try:
            ends = self._end_offsets(places)
            begun = self._committed(places)
        except StreamsError as error:
            # Nothing depends on it: it is asked again, and meanwhile nobody waits.
            self._log.info("lag_unknown", reason=str(error))
            return dict.fromkeys(places, (0, 0))
        return {p: (max(0, ends[p] - begun.get(p, 0)), begun.get(p, 0)) for p in places}
