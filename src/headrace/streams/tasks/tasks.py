"""The tasks of a worker: from assigned partitions to running tasks.

A task needs, in this order: its directory and local state, the committed offsets of its inputs, the
ends of its changelogs, the restore, and only then its input. `advance` takes each task as far as
possible without blocking, so that the other tasks continue.

This table, not the partition list of the client, determines the tasks that a revocation releases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from headrace.state.buffers import RowsKept, bound_caches
from headrace.state.store import TaskState
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.handlers import Handlers
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import (
    AdminClient,
    Clock,
    CommittedOffset,
    Consumer,
    Log,
    Offsets,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.metrics.snapshots import SkewSnapshot, format_duration, moment, skew_of
from headrace.streams.plan.flow import Upstream
from headrace.streams.plan.identity import committed_id, require_same, require_same_changelogs
from headrace.streams.plan.key_sample import KeySample
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import COMMIT_ID, OffsetMetadata
from headrace.streams.plan.topic_plan import did_you_mean
from headrace.streams.plan.topics import describe_twice, known_topics_alone
from headrace.streams.tasks.background_request import BackgroundRequest
from headrace.streams.tasks.failures import is_power_of_two
from headrace.streams.tasks.lost_offsets import Counted, LostOffsets, effects_of
from headrace.streams.tasks.restore import ChangelogDescription, Restorer
from headrace.streams.tasks.sink_connections import SinkConnections, StartPosition, begun_at
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.task_failures import corruption_of
from headrace.topology.context.context import TableView
from headrace.topology.context.environment import Send
from headrace.topology.context.task_context import TaskContext
from headrace.topology.errors import LAST_TIME_MS
from headrace.topology.external_sink import SinkUnavailableError
from headrace.topology.graph.graph import OffsetReset
from headrace.topology.processors.store import Store

# Log fields of a record that is dropped without an error.


_LATE = (
    "its window is closed: the time of its task is stream_time, and grace is over. Where that is "
    "ahead of the clock, a record in front of it has a wrong time: a timestamps= extractor of the "
    "source can refuse such; else raise grace="
)

_LATE_BY_FASTEST = (
    "its window is closed: with stream.time=fastest, a source partition that was read faster moves "
    "the time of the repartition topic past the records of the rest; set stream.time=slowest"
)


def dropped_record(
    task: Task | None,
    reason: str,
    *,
    unfollowed: Collection[str],
    skews: Mapping[str, SkewSnapshot | None],
) -> dict[str, object]:
    """Return the log fields of a dropped record; empty if no record is being processed.

    Args:
        task: the task that dropped it; None while it is created.
        unfollowed: repartition topics whose stream time is the latest timestamp.
        skews: the skew between the upstream inputs of each repartition topic.
    """
    record = None if task is None else task.current()
    if task is None or record is None:
        return {}
    tp = TopicPartition(record.topic(), record.partition())
    fields: dict[str, object] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset(),
        "record_time": moment(record.timestamp()[1]),
    }
    if reason.startswith("late"):
        times = task.partition_time  # before the batch of the record
        stream_time = min(task.context.watermark, max([task.batch_time(), *times.values()]))
        fields |= {
            "stream_time": moment(stream_time),
            "behind_by": format_duration(stream_time - record.timestamp()[1]),
            "advice": _LATE_BY_FASTEST if tp.topic in unfollowed else _LATE,
        }
        skew = skews.get(tp.topic) or _skew_to_fastest(tp, times)
        if skew is not None:
            fields["skew"] = skew.describe()
    return fields


def _skew_to_fastest(
    tp: TopicPartition, times: Mapping[TopicPartition, int]
) -> SkewSnapshot | None:
    """Return the skew to the fastest input of the task; None if it is this input."""
    fastest = max(times, key=times.__getitem__, default=tp)
    return None if fastest == tp else skew_of({str(tp): times[tp], str(fastest): times[fastest]})


# Facts of the cluster that tasks need before they start, from an admin client.


DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms, used if the topic's configuration must not be read."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Facts of a cluster that tasks need before they start, from an admin client."""

    admin: AdminClient
    topics: MutableMapping[str, TopicDescription]
    from_earliest: bool
    resets: Mapping[str, OffsetReset] = field(default_factory=dict)
    """Reset policy of topics that differ from the default."""

    def changelogs(
        self, tps: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogDescription]:
        starts, ends = self.admin.start_offsets(tps), self.admin.end_offsets(tps)
        facts = {}
        for tp in tps:
            topic = self.topics[tp.topic]
            kept_ms = topic.delete_retention_ms
            facts[tp] = ChangelogDescription(
                topic.topic_id,
                starts[tp],
                ends[tp],
                DELETE_RETENTION_MS if kept_ms is None else kept_ms,
            )
        return facts

    def first_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the start offsets of partitions without a committed offset."""
        default: OffsetReset = "earliest" if self.from_earliest else "latest"
        late = [p for p in tps if self.resets.get(p.topic, default) == "latest"]
        early = [tp for tp in tps if tp not in late]
        return {
            **(self.admin.start_offsets(early) if early else {}),
            **(self.admin.end_offsets(late) if late else {}),
        }

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Request the IDs of topics; topics that do not exist are omitted."""
        return {name: facts.topic_id for name, facts in self.admin.describe(topics).items()}

    def partitions_of(self, topic: str) -> int:
        """Return the partition count; an unknown topic is described and remembered."""
        if topic not in self.topics:
            described = describe_twice(self.admin, [topic], {topic}, written={topic})
            if topic not in described:
                named = did_you_mean(topic, sorted(self.admin.names()))
                raise MissingTopicError(
                    f"topic {named}, which a function of the topology has named for a record, does "
                    "not exist; create it, or correct the function",
                    topics=[topic],
                )
            self.topics[topic] = described[topic]
        return self.topics[topic].partitions


def begins_earliest(config: StreamsConfig) -> bool:
    reset = config.consumer_config("").get("auto.offset.reset")
    return reset in ("earliest", "smallest", "beginning")


# Backoff and warnings while committed offsets are undecided.


_ASK_MIN_S = 0.1
_ASK_MAX_S = 1.0
TELL_AFTER_S = 30.0
"""Longer than the timeout of transactions, so that a predecessor's transaction has ended."""
_ADVICE = (
    "the broker ends an open transaction after its producer.transaction.timeout.ms; if this "
    "continues while all brokers are up, find it with headrace transactions list, and end it with "
    "headrace transactions abort"
)


class Backoff:
    """Backoff for requests of undecided offsets while other tasks have work."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self.reset()

    def reset(self) -> None:
        self._wait_s = _ASK_MIN_S
        self._next_s = 0.0
        self._since_s: float | None = None
        self._tell_s = TELL_AFTER_S

    def wait_s(self, *, busy: bool) -> float | None:
        """Return how long to wait for an answer now, or None if the next request is not due."""
        if not busy:
            return _ASK_MAX_S
        return self._wait_s if self._clock.monotonic_s() >= self._next_s else None

    def more(self, undecided: Sequence[TopicPartition]) -> None:
        """Double the backoff, and log undecided partitions."""
        now_s = self._clock.monotonic_s()
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, _ASK_MAX_S)
        self._tell(now_s, [str(tp) for tp in undecided])

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
            reason="a transaction that wrote these offsets has not ended, so they are unknown",
            next=f"the request is repeated; logged again in {waited_s:.0f} s",
            advice=_ADVICE,
        )


# A task that a worker owns, and the facts that it starts from.


class TaskHome(Protocol):
    """A task's local state, and the lock on its directory."""

    state: TaskState

    def wipe(self) -> None:
        """Empty the local state and keep the lock."""

    def close(self) -> None:
        """Close the state and release the lock."""


OpenHome = Callable[[TaskId, Sequence[Store]], TaskHome | None]


@dataclass(slots=True, eq=False)
class OwnedTask:
    """A task that this worker owns.

    It is waiting until the facts that it starts from are known and its directory is open, and again
    after each stop; then restoring, if changelogs have more than its local state; then running.
    """

    id: TaskId
    plan: SubPlan
    lead: str
    """The topic whose partitions the consumer group assigns."""
    inputs: list[TopicPartition] = field(default_factory=list)
    home: TaskHome | None = None
    task: Task | None = None
    is_running: bool = False
    """Whether its state is complete and it reads its input."""
    is_committed: bool = False
    """Whether this worker has committed the task's offsets since it owns the task."""
    lost: Sequence[TopicPartition] = ()
    """The inputs whose committed offsets are missing."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """The effect of the missing offsets, by input."""
    counted: Counted = field(default_factory=Counted)
    """Stores or topics in which its records are counted."""
    lacked_offsets: bool = False
    """Whether missing offsets of a task with state were found before."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The IDs of the input topics at the last start of the task."""
    changelog_ids: Mapping[str, str] = field(default_factory=dict)
    """The IDs of the changelogs at the last start of the task."""
    beginning: StartPosition | None = None
    """Start position of its external sink, if it has one."""

    @property
    def reads_directly(self) -> bool:
        """Whether it writes a topic that the application does not write to an external sink."""
        return self.plan.outside is not None and self.plan.outside.reads_directly

    @property
    def state(self) -> str:
        if self.is_running:
            return "running"
        return "waiting" if self.task is None else "restoring"


@dataclass(frozen=True, slots=True)
class StartMetadata:
    """Facts of the cluster for the start of tasks."""

    slots: Sequence[OwnedTask]
    committed: Mapping[TopicPartition, CommittedOffset | None]
    first: Mapping[TopicPartition, int]
    changelogs: Mapping[TopicPartition, ChangelogDescription]
    topic_ids: Mapping[str, str]
    beginnings: Mapping[TaskId, StartPosition]
    """Start positions of external sinks."""


def look_up(
    facts: ClusterMetadata,
    slots: Sequence[OwnedTask],
    committed: Mapping[TopicPartition, CommittedOffset | None],
    sinks: SinkConnections,
) -> StartMetadata:
    """Request the facts that a start needs besides committed offsets; runs in the background."""
    topics = dict.fromkeys(tp.topic for slot in slots for tp in slot.inputs)
    logs = dict.fromkeys(t for slot in slots for t in slot.plan.changelogs.values())
    # Request the IDs before the offsets, so that a later re-creation of a topic is detected.
    topic_ids = facts.topic_ids({**topics, **logs})
    unknown = [p for slot in slots for p in slot.inputs if committed[p] is None]
    changelogs = [
        TopicPartition(topic, slot.id.partition)
        for slot in slots
        for topic in slot.plan.restored_from
    ]
    # The log describes the records that are read again because of a missing offset.
    changelogs += [tp for slot in slots for tp in slot.lost]
    return StartMetadata(
        slots,
        committed,
        facts.first_offsets(unknown) if unknown else {},
        facts.changelogs(changelogs) if changelogs else {},
        topic_ids,
        ask_sinks(sinks, slots, topic_ids),
    )


def ask_sinks(
    connections: SinkConnections, tasks: Iterable[OwnedTask], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    """Request the start positions of tasks with an external sink; runs in the background."""
    by_plan: dict[int, list[OwnedTask]] = {}
    for task in tasks:
        if task.plan.outside is not None:
            by_plan.setdefault(task.plan.id, []).append(task)
    positions: dict[TaskId, StartPosition] = {}
    for some in by_plan.values():
        positions |= _ask_one(connections, some, topic_ids)
    return positions


def _ask_one(
    connections: SinkConnections, tasks: Sequence[OwnedTask], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    node = tasks[0].plan.outside
    assert node is not None
    assert node.writes_outside is not None
    (topic,) = {tp.topic for task in tasks for tp in task.inputs}
    # A re-created topic has different records at the same offsets.
    source = f"{topic}@{topic_ids[topic]}" if topic in topic_ids else topic
    partitions = [task.id.partition for task in tasks]
    answer = connections.positions(node.name, node.writes_outside, source, partitions)
    if isinstance(answer, SinkUnavailableError):
        return {task.id: StartPosition(source, error=answer) for task in tasks}
    name, batching = connections.name_of(node.name), connections.batching(node.name)
    return {
        task.id: StartPosition(source, answer.get(task.id.partition), batching=batching, name=name)
        for task in tasks
    }


def require_same_topics(slot: OwnedTask, start: Offsets, found: Mapping[str, str]) -> None:
    """Raise if an input topic was re-created, and record the current topic IDs."""
    known = {
        tp.topic: committed_id(tp.topic, OffsetMetadata.decode(c.metadata).values)
        for tp, c in start.items()
    }
    committed = {topic: topic_id for topic, topic_id in known.items() if topic_id is not None}
    require_same({**slot.topic_ids, **committed}, found)
    slot.topic_ids = {tp.topic: found[tp.topic] for tp in start if tp.topic in found}


def drop_unlogged(
    slot: OwnedTask, committed: Mapping[TopicPartition, CommittedOffset | None], log: Log
) -> None:
    """Empty unlogged stores that belong to another commit than the offsets do."""
    assert slot.home is not None
    # Ignore inputs without a committed offset.
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
    stores = map(task.state.store, task.spec.changelogs)
    return any(next(iter(store.scan()), None) is not None for store in stores)


MakeSend = Callable[[], Send]


class Tasks:
    """Tasks of a worker, from assignment and restore to close.

    Args:
        open_home: opens a task's local state; returns None while another worker holds it.
        read_cache_bytes: shared limit of the read caches of all stores and global tables.
        send_letter: the send function of tasks with external sinks.
        upstream: the inputs whose times bound the stream time of tasks.
    """

    def __init__(
        self,
        *,
        plans: Sequence[SubPlan],
        partitions: Mapping[str, int],
        consumer: Consumer,
        restorer: Restorer,
        facts: ClusterMetadata,
        open_home: OpenHome,
        make_send: MakeSend,
        lost_offsets: LostOffsets,
        read_cache_bytes: int,
        clock: Clock,
        background: Background,
        log: Log,
        handlers: Handlers | None = None,
        make_context: Callable[[TaskId], TaskContext] | None = None,
        global_views: Mapping[str, TableView] | None = None,
        sinks: SinkConnections,
        send_letter: Send,
        record_limit: Callable[[str], int | None] = lambda _: None,
        max_ahead_ms: int = LAST_TIME_MS,
        upstream: Upstream | None = None,
    ) -> None:
        self._by_lead = {plan.lead(partitions): plan for plan in plans}
        self._counted = {plan.id: Counted.by(plan, plans) for plan in plans}
        subs = {plan.id: plan.program.sub_topology for plan in plans}
        # Stores of processors report dropped records under their own names.
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
        self._sinks = sinks
        self._send_letter = send_letter
        self._record_limit = record_limit
        self._max_ahead_ms = max_ahead_ms
        self._upstream = upstream or Upstream()
        self._handlers = handlers or Handlers()
        self._make_context = make_context or (lambda task_id: TaskContext(task_id=str(task_id)))
        self._global_views = global_views or {}
        self._clock = clock
        self._slots: dict[TaskId, OwnedTask] = {}
        self._readers: dict[TopicPartition, Task] = {}
        self._backoff = Backoff(clock, log)
        self._request = BackgroundRequest[StartMetadata](background)
        self._log = log
        self.key_sample = KeySample(plans, partitions, log)
        self.dropped: dict[tuple[str, str], int] = {}
        self.skews: dict[str, SkewSnapshot | None] = {}
        """Skew between the upstream inputs of each repartition topic, set by `UpstreamTimes`."""

    @property
    def lead_topics(self) -> list[str]:
        """The subscribed topics: a single topic per sub-topology."""
        return sorted(self._by_lead)

    @property
    def leads(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer group must assign."""
        return frozenset(
            TopicPartition(topic, partition)
            for topic in self._by_lead
            for partition in range(self._partitions[topic])
        )

    @property
    def running(self) -> list[Task]:
        return list(dict.fromkeys(self._readers.values()))

    def bound_caches(self, beside: Iterable[RowsKept]) -> None:
        """Limit the read caches of all stores, and caches `beside` that belong to no task."""
        buffers = [buffer for task in self.running for buffer in task.buffers]
        bound_caches((*buffers, *beside), self._read_cache_bytes)

    @property
    def owned(self) -> list[TaskId]:
        return sorted(self._slots)

    def has_all_of(self, sub_topology: int) -> bool:
        own = sum(task_id.sub_topology == sub_topology for task_id in self._slots)
        leads = [lead for lead, plan in self._by_lead.items() if plan.id == sub_topology]
        return own == sum(self._partitions[lead] for lead in leads)

    @property
    def are_waiting(self) -> bool:
        """Whether a task waits for the cluster or for another worker."""
        return any(slot.task is None for slot in self._slots.values())

    @property
    def has_unknown(self) -> bool:
        """Whether the group has assigned partitions that this worker does not know yet."""
        return not all(map(self._knows, self._slots.values()))

    def _knows(self, slot: OwnedTask) -> bool:
        return slot.id.partition < self._partitions[slot.lead]

    @property
    def all_running(self) -> bool:
        return all(slot.is_running for slot in self._slots.values())

    def states(self) -> dict[TaskId, tuple[str, Task | None]]:
        return {id_: (slot.state, slot.task) for id_, slot in sorted(self._slots.items())}

    def sub_topology_of(self, node: str) -> int:
        return self._sub_topologies[node]

    def reader_of(self, tp: TopicPartition) -> Task | None:
        return self._readers.get(tp)

    # -- assignment --------------------------------------------------------------------------

    def assign(self, leads: Iterable[TopicPartition]) -> None:
        for topic, partition in leads:
            plan = self._by_lead[topic]
            task_id = TaskId(plan.id, partition)
            if task_id not in self._slots:
                self._slots[task_id] = OwnedTask(
                    task_id, plan, topic, counted=self._counted[plan.id]
                )

    def owned_of(self, leads: Iterable[TopicPartition]) -> list[TaskId]:
        ids = [TaskId(self._by_lead[topic].id, partition) for topic, partition in leads]
        return [task_id for task_id in ids if task_id in self._slots]

    def describe_inputs(self, leads: Iterable[TopicPartition]) -> list[str]:
        """Return subscribed partitions and all other inputs of their tasks as text, for the log."""
        inputs = set[TopicPartition](leads)
        for topic, partition in list(inputs):
            inputs.update(self._by_lead[topic].inputs(partition, self._partitions))
        return [str(tp) for tp in sorted(inputs)]

    def release(self, ids: Iterable[TaskId]) -> None:
        """Close owned tasks; uncommitted work is discarded."""
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
        """Re-create running tasks; restores continue, because they read only committed records."""
        for slot in self._slots.values():
            if slot.is_running:
                self._stop(slot)

    def rebuild_all(self) -> None:
        """End all tasks, including restores, and re-create them; local state stays."""
        for slot in self._slots.values():
            self._stop(slot)

    def begin_again(self, task: Task) -> None:
        """Re-create a task from committed facts, without affecting other tasks."""
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
        if slot.is_running:
            slot.is_running = False
            self._consumer.remove(slot.inputs)
            for tp in slot.inputs:
                del self._readers[tp]
        task, slot.task = slot.task, None
        slot.is_committed = task.is_committed
        self._restorer.forget(task, keep=keep_restored)
        for node, error in task.close():
            self._log.warning(
                "processor_close_failed", task=str(task.id), node=node, error=type(error).__name__
            )

    # -- start -------------------------------------------------------------------------------

    def unanswered_sinks(self) -> Mapping[str, str]:
        return self._sinks.unanswered()

    def _may_begin(self, slot: OwnedTask) -> bool:
        node = slot.plan.outside
        return node is None or self._sinks.is_asked_now(node.name)

    def advance(self) -> None:
        """Advance the start of tasks that are not running, without blocking."""
        if self._request.is_pending:
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
        inputs = [tp for slot in waiting for tp in slot.inputs]
        # Committed offsets first, then the changelogs' ends: see headrace.streams.tasks.restore.
        committed = self._committed(inputs)
        if committed is None:
            return
        for slot in waiting:
            own = {tp: committed[tp] for tp in slot.inputs}
            slot.lost = self._lost_offsets.of(slot.plan.id, own)
        self._request.submit(partial(look_up, self._facts, waiting, committed, self._sinks))
        self._begin_looked_up()

    def _begin_looked_up(self) -> None:
        start_facts = self._request.poll()
        if start_facts is None:
            return
        # The client fetches the first added partitions immediately, and the rest with its next
        # request. Internal topics come last because they are empty at first and would delay others.
        for slot in sorted(start_facts.slots, key=lambda slot: slot.plan.reads_own_alone):
            if self._slots.get(slot.id) is slot:
                self._begin_at(slot, start_facts)

    def _begin_at(self, slot: OwnedTask, found: StartMetadata) -> None:
        committed = {tp: found.committed[tp] for tp in slot.inputs}
        start: Offsets = {p: c or CommittedOffset(found.first[p]) for p, c in committed.items()}
        # Check for a re-created topic first: it explains a sink without a position.
        require_same_topics(slot, start, found.topic_ids)
        slot.beginning = found.beginnings.get(slot.id)
        if slot.beginning is not None:
            node = slot.plan.outside
            assert node is not None
            if slot.beginning.error is not None:
                self._sinks.unavailable(node.name, slot.beginning.error)
                return
            is_committed = None not in committed.values()
            group = start
            start = begun_at(start, slot.beginning, node, self._log, is_committed=is_committed)
            if start != group:
                slot.is_committed = False  # commit the sink's position even without new records
            if slot.beginning.position is not None:
                slot.lost = ()  # the sink's position replaces the missing offset
        slot.changelog_ids = require_same_changelogs(
            slot.id, slot.plan.changelogs, start, found.topic_ids
        )
        if slot.lost:
            slot.effects = effects_of(slot.lost, start, found.changelogs)
            has_counted = self._lost_offsets.has_counted(slot.plan.id, committed)
            if has_counted and not self._starts_without(slot):
                return
        self._begin(slot, committed, start, found.changelogs)

    def _committed(
        self, inputs: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        busy = bool(self._readers)
        wait_s = self._backoff.wait_s(busy=busy)
        if wait_s is None:
            return None
        committed = self._consumer.committed(inputs, wait_s)
        if committed is None:
            self._backoff.more(inputs)
        else:
            self._backoff.reset()
        return committed

    def _begin(
        self,
        slot: OwnedTask,
        committed: Mapping[TopicPartition, CommittedOffset | None],
        start: Offsets,
        facts: Mapping[TopicPartition, ChangelogDescription],
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
            handlers=self._handlers,
            context=self._make_context(slot.id),
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
            beginning = slot.beginning
            slot.task.context.outbox.begin(
                beginning.source,
                beginning.position,
                beginning.batching,
                is_first=slot.reads_directly
                and beginning.position is None
                and None in committed.values(),
            )
        if not self._restorer.begin(slot.task, facts):
            self.run(slot.task)

    def _send_of(self, plan: SubPlan) -> Send:
        if plan.outside is not None:
            return self._send_letter
        send = self._make_send()
        return known_topics_alone(send, self._facts.partitions_of) if plan.chooses_topics else send

    def run(self, task: Task) -> None:
        """Start reading the input of a task whose state is complete."""
        slot = self._slots[task.id]
        assert slot.task is task
        with corruption_of(task.id):
            if slot.lost and has_rows(task) and not self._starts_without(slot):
                return
        task.begin()
        self._consumer.add(task.next_offset)
        slot.is_running = True
        for tp in slot.inputs:
            self._readers[tp] = task
        self._log.info(
            "task_started",
            task=str(task.id),
            offsets={str(tp): offset for tp, offset in task.next_offset.items()},
        )

    def _starts_without(self, slot: OwnedTask) -> bool:
        """Return whether a task with state starts although offsets are missing.

        At the first attempt the offsets are requested again, because another worker may have owned
        the task in the meantime.
        """
        if not slot.lacked_offsets:
            slot.lacked_offsets = True
            self._stop(slot)
            return False
        others = [tp for other in self._slots.values() for tp in other.lost]
        self._lost_offsets.meet(str(slot.id), slot.counted, slot.lost, slot.effects, others)
        slot.lost = ()
        return True

    def _drop(self, slot: OwnedTask, node: str, reason: str) -> None:
        count = self.dropped[node, reason] = self.dropped.get((node, reason), 0) + 1
        if is_power_of_two(count):  # describe the last record
            repartitions = {topic.name for topic in slot.plan.topics.repartition_sources}
            last = dropped_record(
                slot.task,
                reason,
                unfollowed=repartitions - self._upstream.writers.keys(),
                skews=self.skews,
            )
            self._log.warning(
                "records_dropped",
                node=node,
                reason=reason,
                count=count,
                task=str(slot.id),
                **last,
            )
