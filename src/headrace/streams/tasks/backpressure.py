"""How far readers of repartition topics are behind the writers, and who waits for whom.

A task that writes to a repartition topic pauses while a partition of it has more unprocessed
records than repartition.lag.max.records, and goes on at half of that. Else a worker with much to
read would read it all before it counts anything.

How far partitions are written is asked for beside the worker, as fetches tell it late, and where
others read them, what the group has committed too. Between two answers those who write read no more
than a part of the bound: what comes of it is seen by nobody. Nobody waits for ever: a reader that
waits for records itself holds nobody up, and one that gets nowhere for a while is allowed to get
further behind, as what it waits for may be what is held up.
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
from headrace.streams.plan.flow import Flow
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.inquiry import Inquiry
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks

LOOK_S = 0.005
"""How long it may be unnoticed that a topic is full."""
ASK_S = 0.25
"""How often the cluster is asked for readers elsewhere, while little is written unseen."""
UNSEEN_PER_LAG = 4
"""Those who write read this part of the bound, and then wait until the cluster was asked."""
ASKED_PER_LAG = 100
"""A question is worth it after this part of the bound was read by those who write."""
AWAITED_PER_LAG = 4
"""A reader commits after this part of the bound, where others can only see what is committed."""
PATIENCE_S = 5.0
"""How long a reader may stand where it is, and an answer be due, before it holds nobody up."""

Offsets = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]
Answer = Mapping[TopicPartition, "tuple[int, int | None]"]
"""The ends of partitions, and where readers elsewhere are."""


@dataclass(slots=True)
class _Reader:
    """How a partition's reader gets on."""

    stands_at: int
    since_s: float
    more: int = 0
    """By how much it may be further behind than others."""


class RepartitionBackpressure:
    """Backpressure between the writers and the readers of repartition topics.

    Args:
        is_ahead: whether a task is to wait as it is ahead of others in event time.
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
        self._feeds = {
            sub: topics
            for sub, topics in flow.feeds.items()
            # Whoever waits for one reader would keep records from the others, whose windows are
            # closed for want of them.
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
        self._inquiry = Inquiry[Answer](background)
        self._full: dict[str, bool] = {}
        self._look_s: dict[str, float] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._elsewhere: dict[TopicPartition, int] = {}
        """Where readers of partitions are that no running task reads here."""
        self._looked_at: dict[str, Sequence[TopicPartition]] = {}
        self._unknown: dict[str, Sequence[TopicPartition]] = {}
        """The partitions of each topic that no running task reads here."""
        self._readers: dict[TopicPartition, _Reader] = {}
        self._held: set[TaskId] = set()
        self._unseen_max = max(1, self._limit // UNSEEN_PER_LAG)
        self._read = 0
        """How many records were read by those who write."""
        self._read_when_asked = 0
        self._read_and_seen = 0
        """As many of them as came before the question that was answered last."""
        self._asked_s = 0.0
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
        held = self._is_ahead(task) or held
        (self._held.add if held else self._held.discard)(task.id)
        return held

    def is_held(self, task: Task) -> bool:
        """Whether a task had to wait when it was last asked for."""
        return task.id in self._held

    def has_read(self, task: Task, count: int) -> None:
        """A task has processed records."""
        if self.feeds(task):
            self._read += count

    def room(self, task: Task) -> int:
        """How many records a task may process before it is to be asked for again."""
        if not self.feeds(task):
            return sys.maxsize
        return max(1, self._unseen_max - (self._read - self._read_and_seen))

    # -- what must be committed for it ---------------------------------------------------------

    def wants_commit(self) -> bool:
        """Whether a task waits for those who cannot read yet what it wrote.

        One that waits for an answer of the cluster alone has it sooner than a commit is made.
        """
        return (
            self._exactly_once
            and bool(self._held)
            and any(task.moved and self._waits_for_readers(task) for task in self._tasks.running)
        )

    def _waits_for_readers(self, task: Task) -> bool:
        topics = self._feeds.get(task.id.sub_topology, ())
        return task.id in self._held and any(self._full.get(topic, False) for topic in topics)

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
        soon = now_s < self._look_s.get(topic, now_s)
        if soon and not was_full and not self._is_blind(now_s):
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
        self._looked_at[topic], self._unknown[topic] = places, unknown
        self._ask(now_s)
        for place in unknown:
            stands_at = self._elsewhere.get(place)
            if stands_at is not None:
                lag = max(0, self._ends[place] - stands_at)
                full = self._is_behind(place, lag, stands_at, limit) or full
        self._full[topic] = full
        return full or self._is_blind(now_s)

    def _is_blind(self, now_s: float) -> bool:
        """Whether as much was read unseen as may be."""
        if self._read - self._read_and_seen < self._unseen_max:
            return False
        return not self._inquiry.is_open or now_s - self._asked_s < PATIENCE_S

    def _lag_here(self, place: TopicPartition, reader: Task) -> tuple[int, int]:
        # The position passes markers and aborted records: nothing will ever come of those.
        position = self._consumer.positions([place]).get(place, 0)
        stands_at = max(position, reader.next_offset[place])
        queued = reader.queued_in(place)
        fetched = self._consumer.lag(place, stands_at) or 0
        lag = max(fetched, self._ends.get(place, 0) - stands_at)
        return lag + queued, stands_at - queued

    def _is_behind(self, place: TopicPartition, lag: int, stands_at: int, limit: int) -> bool:
        now_s = self._clock.monotonic_s()
        reader = self._readers.get(place)
        if reader is None or reader.stands_at != stands_at or lag <= limit:
            reader = self._readers[place] = _Reader(stands_at, now_s)
        elif lag > limit + reader.more and now_s - reader.since_s >= PATIENCE_S:
            reader.since_s, reader.more = now_s, lag
            self._log.info("reader_stands_still", partition=str(place), lag=lag)
        return lag > limit + reader.more

    # -- what the cluster says -----------------------------------------------------------------

    def _ask(self, now_s: float) -> None:
        if not self._inquiry.is_open and self._is_worth_asking(now_s):
            self._read_when_asked, self._asked_s = self._read, now_s
            places = [place for looked_at in self._looked_at.values() for place in looked_at]
            unknown = [place for places in self._unknown.values() for place in places]
            self._inquiry.ask(partial(self._look, places, unknown))
        if self._inquiry.is_open and (found := self._inquiry.take()) is not None:
            self._read_and_seen = self._read_when_asked
            self._ask_s = now_s + ASK_S
            for place, (end, begun) in found.items():
                self._ends[place] = end
                if begun is not None:
                    self._elsewhere[place] = begun

    def _is_worth_asking(self, now_s: float) -> bool:
        unseen = self._read - self._read_and_seen
        if 2 * unseen >= self._unseen_max:
            return True
        if now_s < self._ask_s or not any(self._unknown.values()):
            return False
        return any(self._full.values()) or unseen * ASKED_PER_LAG >= self._limit

    def _look(self, places: Sequence[TopicPartition], unknown: Sequence[TopicPartition]) -> Answer:
        """Ask the cluster; runs beside the worker."""
        try:
            ends = self._end_offsets(places)
            begun = self._committed(unknown) if unknown else {}
        except StreamsError as error:
            # Nothing depends on it: it is asked again, and meanwhile nobody waits.
            self._log.info("lag_unknown", reason=str(error))
            return dict.fromkeys(unknown, (0, 0))
        read_here = set(places).difference(unknown)
        return {p: (ends[p], None if p in read_here else begun.get(p, 0)) for p in places}
