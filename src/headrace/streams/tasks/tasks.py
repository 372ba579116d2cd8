"""The tasks of one worker: from the partitions that the group gives to tasks that run.

A task needs, in this order: its directory and local state, the committed offsets of its inputs,
the ends of its changelogs, the restore, and only then its input. `advance` takes each task as far
as it gets without waiting, so that the others go on meanwhile.

What a revocation takes away follows from this table, not from the list that the client hands over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FrameType
from typing import Protocol

from headrace.state.buffers import RowsKept, bound_caches
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.handlers import Handlers
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import (
    Clock,
    CommittedOffset,
    Consumer,
    Log,
    Offsets,
    TopicFacts,
    TopicPartition,
)
from headrace.streams.plan.changelog_identity import require_same_changelogs
from headrace.streams.plan.key_sample import KeySample
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import COMMIT_ID, OffsetMetadata
from headrace.streams.plan.topic_errors import require_same
from headrace.streams.plan.topic_identity import committed_id
from headrace.streams.plan.topic_plan import did_you_mean
from headrace.streams.plan.topics import TopicAdmin, describe_twice, known_topics_alone
from headrace.streams.plan.upstream import Upstream
from headrace.streams.tasks.inquiry import Inquiry
from headrace.streams.tasks.lost_offsets import Counted, LostOffsets, effects_of
from headrace.streams.tasks.restore import ChangelogFacts, Restorer
from headrace.streams.tasks.sink_connections import SinkConnections
from headrace.streams.tasks.start_positions import StartPosition, ask_sinks, begun_at
from headrace.streams.tasks.task import Phase, Task
from headrace.streams.tasks.task_failures import corruption_of
from headrace.streams.tasks.task_home import TaskHome
from headrace.topology.compile.compiler import Program
from headrace.topology.context.context import TableView
from headrace.topology.context.environment import Send
from headrace.topology.context.punctuation import NEVER_MS
from headrace.topology.context.task_facts import TaskFacts
from headrace.topology.errors import LAST_TIME_MS
from headrace.topology.graph.graph import OffsetReset
from headrace.topology.processors.store import Store

# What is said of a record that is left out without an error: which it is, and why it is late.


_LATE = (
    "its window is closed: the time of its task is stream_time, and grace is over. Where that is "
    "ahead of the clock, a record in front of it has a wrong time: a timestamps= extractor of the "
    "source can refuse such; else raise grace="
)

_LATE_BY_FASTEST = (
    "its window is closed: with stream.time=fastest, a source partition that was read faster moves "
    "the time of the repartition topic past the records of the others; set stream.time=slowest"
)


def dropped_record(
    program: Program,
    frame: FrameType,
    reason: str,
    times: Mapping[TopicPartition, int],
    watermark: int = NEVER_MS,
    unfollowed: Collection[str] = (),
) -> dict[str, object]:
    """The fields of the event that tells of it; none where no record is being processed.

    Args:
        program: what processes it.
        frame: where it was left out, or what was called from there.
        reason: why.
        times: the largest time of each input before the batch that it is in, in milliseconds.
        watermark: what stream time is not later than.
        unfollowed: repartition topics whose stream time is the latest timestamp.
    """
    record = program.current(frame)
    if record is None:
        return {}
    said: dict[str, object] = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "record_time": moment(record.timestamp()[1]),
    }
    if reason.startswith("late"):
        stream_time = min(watermark, max([program.stream_time(frame), *times.values()]))
        said |= {
            "stream_time": moment(stream_time),
            "behind_by": _duration(stream_time - record.timestamp()[1]),
            "advice": _LATE_BY_FASTEST if record.topic() in unfollowed else _LATE,
        }
    return said


def _duration(duration_ms: int) -> str:
    try:
        return str(timedelta(milliseconds=duration_ms))
    except OverflowError:
        return f"{duration_ms} ms"


def moment(time_ms: int) -> str:
    """A time of a record as people read it.

    >>> moment(1_700_000_000_000), moment(-1), moment(1_700_000_000_000_000)
    ('2023-11-14T22:13:20.000Z', '-1 ms', '1700000000000000 ms')
    """
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms >= 0 else None
    except (ValueError, OverflowError, OSError):
        time = None
    if time is None:
        return f"{time_ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# What tasks ask of a cluster before they begin, answered by an admin client.


DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms, where reading the topic's own is not allowed."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Answers the tasks' questions with an admin client.

    See `headrace.streams.tasks.tasks.Facts`.
    """

    admin: TopicAdmin
    topics: MutableMapping[str, TopicFacts]
    from_earliest: bool
    resets: Mapping[str, OffsetReset] = field(default_factory=dict)
    """Where to begin with a topic, where that is not where all others begin."""

    def changelogs(
        self, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogFacts]:
        """Ends and identities of changelog partitions, asked for now."""
        starts, ends = self.admin.start_offsets(places), self.admin.end_offsets(places)
        facts = {}
        for place in places:
            topic = self.topics[place.topic]
            kept_ms = topic.delete_retention_ms
            facts[place] = ChangelogFacts(
                topic.topic_id,
                starts[place],
                ends[place],
                DELETE_RETENTION_MS if kept_ms is None else kept_ms,
            )
        return facts

    def first_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with partitions for which nothing was ever committed."""
        default: OffsetReset = "earliest" if self.from_earliest else "latest"
        late = [p for p in places if self.resets.get(p.topic, default) == "latest"]
        early = [place for place in places if place not in late]
        return {
            **(self.admin.start_offsets(early) if early else {}),
            **(self.admin.end_offsets(late) if late else {}),
        }

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of those topics that exist, asked for now."""
        return {name: facts.topic_id for name, facts in self.admin.describe(topics).items()}

    def partitions_of(self, topic: str) -> int:
        """The partition count of a topic; one that was not described before is asked for, once.

        From then on it is one of the application's topics.

        Raises:
            MissingTopicError: there is no such topic.
        """
        if topic not in self.topics:
            found = describe_twice(self.admin, [topic], {topic}, written={topic})
            if topic not in found:
                named = did_you_mean(topic, sorted(self.admin.names()))
                raise MissingTopicError(
                    f"topic {named}, which a function of the topology has named for a record, does "
                    "not exist; create it, or correct the function",
                    topics=[topic],
                )
            self.topics[topic] = found[topic]
        return self.topics[topic].partitions


def begins_earliest(config: StreamsConfig) -> bool:
    """Whether partitions without an offset are read from their beginning."""
    reset = config.consumer_config("").get("auto.offset.reset")
    return reset in ("earliest", "smallest", "beginning")


# How long to wait for an answer while there is other work to do, and when to say so.


_ASK_MIN_S = 0.1
_ASK_MAX_S = 1.0
TELL_AFTER_S = 30.0
"""Longer than transactions last: what a predecessor left open is decided by then."""
_ADVICE = (
    "the broker ends an open transaction after its producer.transaction.timeout.ms; where this "
    "goes on while all brokers are up, headrace transactions list shows it, and headrace "
    "transactions abort ends it"
)


class Backoff:
    """Backoff while offsets are undecided and other tasks have work."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self.reset()

    def reset(self) -> None:
        """Begin with little patience again."""
        self._wait_s = _ASK_MIN_S
        self._next_s = 0.0
        self._since_s: float | None = None
        self._tell_s = TELL_AFTER_S

    def wait_s(self, *, busy: bool) -> float | None:
        """How long to wait for an answer now; None where it is too early to ask again."""
        if not busy:
            return _ASK_MAX_S
        return self._wait_s if self._clock.monotonic_s() >= self._next_s else None

    def more(self, undecided: Sequence[TopicPartition]) -> None:
        """Wait longer the next time, and leave as much time for others before it.

        Args:
            undecided: the partitions whose offsets there is no answer for.
        """
        now_s = self._clock.monotonic_s()
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, _ASK_MAX_S)
        self._tell(now_s, [str(place) for place in undecided])

    def _tell(self, now_s: float, partitions: list[str]) -> None:
        if self._since_s is None:
            self._since_s = now_s
            self._log.info("offsets_undecided", partitions=partitions)
            return
        waited_s = now_s - self._since_s
        if waited_s < self._tell_s:
            return
        self._tell_s = 2 * waited_s
        self._log.warning(
            "offsets_undecided",
            partitions=partitions,
            waited_s=round(waited_s, 1),
            reason="a transaction that wrote these offsets has not ended, so nobody can know them",
            next=f"asks again all the time; said again in {waited_s:.0f} s",
            advice=_ADVICE,
        )


# A task that a worker owns, and what it begins from.


class Facts(Protocol):
    """What tasks must ask of the cluster."""

    def changelogs(
        self, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogFacts]:
        """Ends and identities of changelog partitions, asked for now."""

    def first_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with partitions for which nothing was ever committed."""

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of those topics that exist, asked for now."""

    def partitions_of(self, topic: str) -> int:
        """The partition count of a topic that is written to."""


OpenHome = Callable[[TaskId, Sequence[Store]], TaskHome | None]


@dataclass(slots=True, eq=False)
class OwnedTask:
    """A task that this worker owns, in any phase."""

    id: TaskId
    plan: SubPlan
    lead: str
    """The topic whose partitions the group gives out."""
    inputs: list[TopicPartition] = field(default_factory=list)
    home: TaskHome | None = None
    task: Task | None = None
    is_committed: bool = False
    """Whether this worker has committed the task's offsets since it has the task."""
    lost: Sequence[TopicPartition] = ()
    """The inputs whose offsets are gone."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """What follows from that, by input."""
    counted: Counted = field(default_factory=Counted)
    """Where its records are counted."""
    lacked_offsets: bool = False
    """Whether state without offsets was met once."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the input topics when the task was begun last."""
    changelog_ids: Mapping[str, str] = field(default_factory=dict)
    """Those of the changelogs."""
    beginning: StartPosition | None = None
    """What its sink says, where it writes to a table outside of Kafka."""

    @property
    def reads_directly(self) -> bool:
        """Whether it writes to such a table, and reads a topic that it does not write itself."""
        return self.plan.outside is not None and self.plan.outside.reads_directly

    @property
    def reads(self) -> bool:
        """Whether the task is there and gets records."""
        return self.task is not None and self.task.phase is Phase.RUNNING


@dataclass(frozen=True, slots=True)
class Found:
    """The facts that some tasks begin from."""

    slots: Sequence[OwnedTask]
    committed: Mapping[TopicPartition, CommittedOffset | None]
    first: Mapping[TopicPartition, int]
    changelogs: Mapping[TopicPartition, ChangelogFacts]
    topic_ids: Mapping[str, str]
    beginnings: Mapping[TaskId, StartPosition]
    """What sinks say."""


def look_up(
    facts: Facts,
    slots: Sequence[OwnedTask],
    committed: Mapping[TopicPartition, CommittedOffset | None],
    sinks: SinkConnections,
) -> Found:
    """Ask what must be known besides the committed offsets; runs beside the worker."""
    topics = dict.fromkeys(place.topic for slot in slots for place in slot.inputs)
    logs = dict.fromkeys(t for slot in slots for t in slot.plan.changelogs.values())
    # Before the first offsets: those of a topic that is made anew later are of no use.
    topic_ids = facts.topic_ids({**topics, **logs})
    unknown = [p for slot in slots for p in slot.inputs if committed[p] is None]
    changelogs = [
        TopicPartition(topic, slot.id.partition)
        for slot in slots
        for topic in slot.plan.restored_from
    ]
    # Of an input whose offset is gone it is said what is read again.
    changelogs += [place for slot in slots for place in slot.lost]
    return Found(
        slots,
        committed,
        facts.first_offsets(unknown) if unknown else {},
        facts.changelogs(changelogs) if changelogs else {},
        topic_ids,
        ask_sinks(sinks, slots, topic_ids),
    )


def require_same_topics(slot: OwnedTask, start: Offsets, found: Mapping[str, str]) -> None:
    """Compare the topics that are there with those that were read."""
    known = {
        place.topic: committed_id(place.topic, OffsetMetadata.decode(c.metadata).values)
        for place, c in start.items()
    }
    committed = {topic: topic_id for topic, topic_id in known.items() if topic_id is not None}
    require_same({**slot.topic_ids, **committed}, found)
    slot.topic_ids = {place.topic: found[place.topic] for place in start if place.topic in found}


def drop_unlogged(
    slot: OwnedTask, committed: Mapping[TopicPartition, CommittedOffset | None], log: Log
) -> None:
    """Empty unlogged stores that belong to another commit than the offsets do."""
    assert slot.home is not None
    # An input that was never committed says nothing.
    offsets = [offset for offset in committed.values() if offset is not None]
    ids = {OffsetMetadata.decode(offset.metadata).values.get(COMMIT_ID) for offset in offsets}
    for store in slot.plan.program.sub_topology.stores:
        if store.spec.logged:
            continue
        position = slot.home.state.position(store.name)
        if position is None or {position.commit_id} != ids:
            slot.home.state.drop_store(store.name)
        if position is not None and {position.commit_id} != ids:
            log.warning(
                "store_dropped",
                task=str(slot.id),
                store=store.name,
                reason="it has no changelog, and is of another commit than the offsets",
            )


def has_rows(task: Task) -> bool:
    """Whether there is a row in a store of a task that has a changelog."""
    stores = map(task.state.store, task.spec.changelogs)
    return any(next(iter(store.scan()), None) is not None for store in stores)


MakeSend = Callable[[], Send]


class Tasks:
    """Tasks of one worker, from assignment over restore to close.

    Args:
        open_home: opens a task's local state; None while another worker has it.
        make_send: gives the present producer's send.
        read_cache_bytes: what the caches of all stores and global tables may take together.
        make_facts: makes what the processors of a task share.
        global_views: the rows of global tables, by their nodes.
        write_line: what `print` writes with.
        sinks: the tables outside of Kafka.
        send_letter: what their tasks send with.
        record_limit: returns the bytes of the largest record that a topic takes, if known.
        max_ahead_ms: how far ahead of the clock topics accept timestamps.
        upstream: the inputs whose times bound the stream time of tasks.
    """

    def __init__(
        self,
        *,
        plans: Sequence[SubPlan],
        partitions: Mapping[str, int],
        consumer: Consumer,
        restorer: Restorer,
        facts: Facts,
        open_home: OpenHome,
        make_send: MakeSend,
        lost_offsets: LostOffsets,
        read_cache_bytes: int,
        clock: Clock,
        background: Background,
        log: Log,
        handlers: Handlers | None = None,
        make_facts: Callable[[TaskId], TaskFacts] | None = None,
        global_views: Mapping[str, TableView] | None = None,
        write_line: Callable[[str], None] = print,
        sinks: SinkConnections,
        send_letter: Send,
        record_limit: Callable[[str], int | None] = lambda _: None,
        max_ahead_ms: int = LAST_TIME_MS,
        upstream: Upstream | None = None,
    ) -> None:
        self._by_lead = {plan.lead(partitions): plan for plan in plans}
        self._counted = {plan.id: Counted.by(plan, plans) for plan in plans}
        subs = {plan.id: plan.program.sub_topology for plan in plans}
        # A processor's store leaves records out by its own name.
        self._sub_topologies = {
            **{store.name: number for number, sub in subs.items() for store in sub.stores},
            **{node.name: number for number, sub in subs.items() for node in sub.nodes},
        }
        self._partitions = partitions
        self._consumer = consumer
        self._restorer = restorer
        self._facts = facts
        self._open_home = open_home
        self._make_send = make_send
        self._lost_offsets = lost_offsets
        self._read_cache_bytes = read_cache_bytes
        self._write_line = write_line
        self._sinks = sinks
        self._send_letter = send_letter
        self._record_limit = record_limit
        self._max_ahead_ms = max_ahead_ms
        self._upstream = upstream or Upstream()
        self._handlers = handlers or Handlers()
        self._make_facts = make_facts or (lambda task_id: TaskFacts(task_id=str(task_id)))
        self._global_views = global_views or {}
        self._clock = clock
        self._slots: dict[TaskId, OwnedTask] = {}
        self._readers: dict[TopicPartition, Task] = {}
        self._patience = Backoff(clock, log)
        self._inquiry = Inquiry[Found](background)
        self._log = log
        self.key_sample = KeySample(plans, partitions, log)
        self.dropped: dict[tuple[str, str], int] = {}

    @property
    def lead_topics(self) -> list[str]:
        """What to subscribe to: one topic of each sub-topology."""
        return sorted(self._by_lead)

    @property
    def leads(self) -> frozenset[TopicPartition]:
        """The partitions that the group is to give out."""
        return frozenset(
            TopicPartition(topic, partition)
            for topic in self._by_lead
            for partition in range(self._partitions[topic])
        )

    @property
    def running(self) -> list[Task]:
        """The tasks that process records."""
        return list(dict.fromkeys(self._readers.values()))

    def bound_caches(self, beside: Iterable[RowsKept]) -> None:
        """Let the caches of committed rows have what all of them may take together.

        Args:
            beside: those that belong to no task.
        """
        own = [buffer for task in self.running for buffer in task.buffers]
        bound_caches((*own, *beside), self._read_cache_bytes)

    @property
    def owned(self) -> list[TaskId]:
        """All tasks of this worker."""
        return sorted(self._slots)

    def has_all_of(self, sub_topology: int) -> bool:
        """Whether all tasks of a sub-topology are this worker's."""
        own = sum(task_id.sub_topology == sub_topology for task_id in self._slots)
        leads = [lead for lead, plan in self._by_lead.items() if plan.id == sub_topology]
        return own == sum(self._partitions[lead] for lead in leads)

    @property
    def are_waiting(self) -> bool:
        """Whether a task waits for what the cluster or another worker will say."""
        return any(slot.task is None for slot in self._slots.values())

    @property
    def has_unknown(self) -> bool:
        """Whether the group has given out partitions that nobody here has heard of yet."""
        return not all(map(self._knows, self._slots.values()))

    def _knows(self, slot: OwnedTask) -> bool:
        return slot.id.partition < self._partitions[slot.lead]

    @property
    def all_running(self) -> bool:
        """Whether no task is still on its way."""
        return all(slot.reads for slot in self._slots.values())

    def states(self) -> dict[TaskId, tuple[str, Task | None]]:
        """How far each task of this worker is, in words, and the task where there is one."""
        return {
            task_id: (
                "running" if slot.reads else "waiting" if slot.task is None else "restoring",
                slot.task,
            )
            for task_id, slot in sorted(self._slots.items())
        }

    def sub_topology_of(self, node: str) -> int:
        """The sub-topology that a node, or a store, is of."""
        return self._sub_topologies[node]

    def reader_of(self, place: TopicPartition) -> Task | None:
        """The running task that reads a partition."""
        return self._readers.get(place)

    # -- the group's word --------------------------------------------------------------------

    def assign(self, leads: Iterable[TopicPartition]) -> None:
        """Own the tasks of these partitions of lead topics."""
        for topic, partition in leads:
            plan = self._by_lead[topic]
            task_id = TaskId(plan.id, partition)
            if task_id not in self._slots:
                self._slots[task_id] = OwnedTask(
                    task_id, plan, topic, counted=self._counted[plan.id]
                )

    def owned_of(self, leads: Iterable[TopicPartition]) -> list[TaskId]:
        """The tasks that these partitions of lead topics stand for."""
        ids = [TaskId(self._by_lead[topic].id, partition) for topic, partition in leads]
        return [task_id for task_id in ids if task_id in self._slots]

    def told(self, leads: Iterable[TopicPartition]) -> list[str]:
        """For the log: these partitions of lead topics, and all others that their tasks read."""
        found = set[TopicPartition](leads)
        for topic, partition in list(found):
            found.update(self._by_lead[topic].inputs(partition, self._partitions))
        return [str(place) for place in sorted(found)]

    def release(self, ids: Iterable[TaskId]) -> None:
        """Let go of tasks, those of them that are here; what is not committed is forgotten."""
        for task_id in list(ids):
            slot = self._slots.pop(task_id, None)
            if slot is None:
                continue
            self._stop(slot)
            if slot.home is not None:
                slot.home.close()
        if not self._slots:
            self._sinks.close()

    # -- rebuilding --------------------------------------------------------------------------

    def rebuild(self) -> None:
        """End the running tasks and begin them anew from committed facts; local state stays.

        Restores go on: what they read was committed before they began.
        """
        for slot in self._slots.values():
            if slot.reads:
                self._stop(slot)

    def rebuild_all(self) -> None:
        """End all tasks, those being restored too, and begin them anew; local state stays."""
        for slot in self._slots.values():
            self._stop(slot)

    def begin_again(self, task: Task) -> None:
        """End one task and begin it anew from committed facts; the others go on."""
        self._stop(self._slots[task.id])

    def wipe(self, names: Iterable[str]) -> None:
        """Rebuild the local state of tasks from their changelogs."""
        wanted = set(names)
        for slot in self._slots.values():
            if str(slot.id) in wanted and slot.home is not None:
                self._stop(slot, keep_restored=False)
                slot.home.wipe()

    def _stop(self, slot: OwnedTask, *, keep_restored: bool = True) -> None:
        if slot.task is None:
            return
        if slot.reads:
            self._consumer.remove(slot.inputs)
            for place in slot.inputs:
                del self._readers[place]
        task, slot.task = slot.task, None
        slot.is_committed = task.is_committed
        self._restorer.forget(task, keep=keep_restored)
        for node, error in task.close():
            self._log.warning(
                "processor_close_failed", task=str(task.id), node=node, error=type(error).__name__
            )

    # -- on the way to running ---------------------------------------------------------------

    def unanswered_sinks(self) -> Mapping[str, str]:
        """The tables outside of Kafka that do not answer, and what is wrong with each."""
        return self._sinks.unanswered()

    def _may_begin(self, slot: OwnedTask) -> bool:
        """Whether its sink may be asked, if it has one."""
        node = slot.plan.outside
        return node is None or self._sinks.is_asked_now(node.name)

    def advance(self) -> None:
        """Take tasks that do not run yet as far as they get without waiting."""
        if self._inquiry.is_open:
            self._begin_looked_up()
            return
        waiting = [s for s in self._slots.values() if s.task is None and self._knows(s)]
        for slot in waiting:
            slot.inputs = slot.plan.inputs(slot.id.partition, self._partitions)
            if slot.home is None:
                slot.home = self._open_home(slot.id, slot.plan.program.sub_topology.stores)
        waiting = [s for s in waiting if s.home is not None and self._may_begin(s)]
        if not waiting:
            return
        inputs = [place for slot in waiting for place in slot.inputs]
        # Committed offsets first, then the changelogs' ends: see headrace.streams.tasks.restore.
        committed = self._committed(inputs)
        if committed is None:
            return
        for slot in waiting:
            own = {place: committed[place] for place in slot.inputs}
            slot.lost = self._lost_offsets.of(slot.plan.id, own)
        self._inquiry.ask(partial(look_up, self._facts, waiting, committed, self._sinks))
        self._begin_looked_up()

    def _begin_looked_up(self) -> None:
        """Begin the tasks whose facts have come, as far as they are this worker's still."""
        found = self._inquiry.take()
        if found is None:
            return
        # The client asks a broker at once for what it reads first, and for the rest in its next
        # question: what the application itself writes is empty yet, and would hold the others up.
        for slot in sorted(found.slots, key=lambda slot: slot.plan.reads_own_alone):
            if self._slots.get(slot.id) is slot:
                self._begin_at(slot, found)

    def _begin_at(self, slot: OwnedTask, found: Found) -> None:
        committed = {place: found.committed[place] for place in slot.inputs}
        start: Offsets = {p: c or CommittedOffset(found.first[p]) for p, c in committed.items()}
        # A topic that was made anew is what is wrong then, and not that its sink has no position.
        require_same_topics(slot, start, found.topic_ids)
        slot.beginning = found.beginnings.get(slot.id)
        if slot.beginning is not None:
            node = slot.plan.outside
            assert node is not None
            if slot.beginning.error is not None:
                self._sinks.unavailable(node.name, slot.beginning.error)
                return
            told = None not in committed.values()
            group = start
            start = begun_at(start, slot.beginning, node, self._log, told=told)
            if start != group:
                slot.is_committed = False  # the group is to follow, also where no record comes
            if slot.beginning.position is not None:
                slot.lost = ()  # the sink knows what was read
        slot.changelog_ids = require_same_changelogs(
            slot.id, slot.plan.changelogs, start, found.topic_ids
        )
        if slot.lost:
            slot.effects = effects_of(slot.lost, start, found.changelogs)
            has_counted = self._lost_offsets.has_counted(slot.plan.id, committed)
            if has_counted and not self._goes_on(slot):
                return
        self._begin(slot, committed, start, found.changelogs)

    def _committed(
        self, inputs: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        """Ask for committed offsets; None while a transaction on them is undecided."""
        busy = bool(self._readers)
        wait_s = self._patience.wait_s(busy=busy)
        if wait_s is None:
            return None
        committed = self._consumer.committed(inputs, wait_s)
        if committed is None:
            self._patience.more(inputs)
        else:
            self._patience.reset()
        return committed

    def _begin(
        self,
        slot: OwnedTask,
        committed: Mapping[TopicPartition, CommittedOffset | None],
        start: Offsets,
        facts: Mapping[TopicPartition, ChangelogFacts],
    ) -> None:
        assert slot.home is not None
        with corruption_of(slot.id):
            drop_unlogged(slot, committed, self._log)
        writers = {
            topic.name: self._upstream.writers[topic.name]
            for topic in slot.plan.topics.repartition_sources
            if topic.name in self._upstream.writers
        }
        slot.task = Task(
            spec=slot.plan.task(
                slot.id.partition,
                partitions_of=self._facts.partitions_of,
            ),
            state=slot.home.state,
            start=start,
            send=self._send_of(slot.plan),
            dropped=partial(self._drop, slot),
            write_line=self._write_line,
            handlers=self._handlers,
            facts=self._make_facts(slot.id),
            global_views=self._global_views,
            now_ms=self._clock.now_ms,
            record_limit=self._record_limit,
            max_ahead_ms=self._max_ahead_ms,
            log=self._log,
            topic_ids=slot.topic_ids,
            changelog_ids=slot.changelog_ids,
            followed=frozenset(writers),
            is_time_bounded=any(w.are_many(self._partitions) for w in writers.values()),
            repartitions=self._upstream.written(slot.plan.id),
            is_committed=slot.is_committed,
        )
        if slot.beginning is not None:
            told = slot.beginning
            slot.task.facts.outbox.begin(
                told.source,
                told.position,
                told.batching,
                is_first=slot.reads_directly
                and told.position is None
                and None in committed.values(),
            )
        if self._restorer.begin(slot.task, facts):
            slot.task.become(Phase.RESTORING)
        else:
            self.run(slot.task)

    def _send_of(self, plan: SubPlan) -> Send:
        """What a task sends with; topics that its functions name are looked for first."""
        if plan.outside is not None:
            return self._send_letter
        send = self._make_send()
        return known_topics_alone(send, self._facts.partitions_of) if plan.chooses_topics else send

    def run(self, task: Task) -> None:
        """Let a task whose state is complete read its input."""
        slot = self._slots[task.id]
        assert slot.task is task
        with corruption_of(task.id):
            if slot.lost and has_rows(task) and not self._goes_on(slot):
                return
        task.begin()
        self._consumer.add(task.next_offset)
        task.become(Phase.RUNNING)
        for place in slot.inputs:
            self._readers[place] = task
        self._log.info(
            "task_started",
            task=str(task.id),
            offsets={str(place): offset for place, offset in task.next_offset.items()},
        )

    def _goes_on(self, slot: OwnedTask) -> bool:
        """Whether a task that has state begins although offsets are gone.

        At first they are asked for once more: another worker may have had the task meanwhile.

        Raises:
            StateWithoutOffsetsError: it would count twice.
        """
        if not slot.lacked_offsets:
            slot.lacked_offsets = True
            self._stop(slot)
            return False
        others = [place for other in self._slots.values() for place in other.lost]
        self._lost_offsets.meet(str(slot.id), slot.counted, slot.lost, slot.effects, others)
        slot.lost = ()
        return True

    def _drop(self, slot: OwnedTask, node: str, reason: str) -> None:
        count = self.dropped[node, reason] = self.dropped.get((node, reason), 0) + 1
        # Powers of two: seen at once, and never a flood. The last one of them is named.
        if count & (count - 1) == 0:
            times = {} if slot.task is None else slot.task.partition_time
            watermark = NEVER_MS if slot.task is None else slot.task.facts.watermark
            repartitions = {topic.name for topic in slot.plan.topics.repartition_sources}
            last = dropped_record(
                slot.plan.program,
                sys._getframe(),
                reason,
                times,
                watermark,
                repartitions - self._upstream.writers.keys(),
            )
            self._log.warning(
                "records_dropped",
                node=node,
                reason=reason,
                count=count,
                task=str(slot.id),
                **last,
            )
