"""The tasks of a worker: from assigned partitions to running tasks.

A task needs, in this order: its directory and local state, the committed offsets of its inputs, the
ends of its changelogs, the restore, and only then its input. `advance` takes each task as far as
possible without blocking, so that the other tasks continue.

`Tasks`, not the partition list of the client, determines the tasks that a revocation releases.

Before `Tasks`, this file has its parts: the log fields of dropped records, the cluster metadata for
the start of a task, `Backoff` for undecided committed offsets, and `OwnedTask`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from headrace.state.buffers import BoundedCache, bound_caches
from headrace.state.codec import partition_for_key
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
from headrace.streams.tasks.failures import is_log_worthy
from headrace.streams.tasks.lost_offsets import Counted, LostOffsets, effects_of
from headrace.streams.tasks.restore import ChangelogDescription, Restorer
from headrace.streams.tasks.sink_connections import SinkConnections, StartPosition, sink_offsets
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.task_failures import corruption_of
from headrace.topology.context.context import TableView
from headrace.topology.context.environment import Send
from headrace.topology.context.task_context import TaskContext
from headrace.topology.errors import LAST_TIME_MS
from headrace.topology.external_sink import SinkUnavailableError
from headrace.topology.graph.graph import OffsetReset
from headrace.topology.processors.store import Store

# Log fields of records that are dropped without an error.


_LATE = (
    "its window is closed: stream_time has passed its end and the grace period. If stream_time is "
    "ahead of the clock, an earlier record has a wrong timestamp: reject such timestamps in a "
    "timestamps= extractor of the source. Otherwise raise grace="
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


# Cluster metadata that tasks need before they start.


DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms, used if the topic's configuration must not be read."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Metadata of a cluster that tasks need before they start, from an admin client."""

    admin: AdminClient
    topics: MutableMapping[str, TopicDescription]
    from_earliest: bool
    resets: Mapping[str, OffsetReset] = field(default_factory=dict)
    """Reset policy of topics that differ from the default."""
    partition_for_key: Callable[[bytes, int], int] = partition_for_key
    """Returns the default partition of a serialized key, from the partition count."""

    def changelogs(
        self, tps: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogDescription]:
        starts, ends = self.admin.start_offsets(tps), self.admin.end_offsets(tps)
        result = {}
        for tp in tps:
            topic = self.topics[tp.topic]
            retention_ms = topic.delete_retention_ms
            if retention_ms is None:
                retention_ms = DELETE_RETENTION_MS
            result[tp] = ChangelogDescription(topic.topic_id, starts[tp], ends[tp], retention_ms)
        return result

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
        described = self.admin.describe(topics)
        return {name: description.topic_id for name, description in described.items()}

    def partitions_of(self, topic: str) -> int:
        """Return the partition count; an unknown topic is described and remembered."""
        if topic not in self.topics:
            described = describe_twice(self.admin, [topic], {topic}, written={topic})
            if topic not in described:
                named = did_you_mean(topic, sorted(self.admin.names()))
                raise MissingTopicError(
                    f"topic {named} does not exist; a function of the topology returned it. Create "
                    "it, or correct the function",
                    topics=[topic],
                )
            self.topics[topic] = described[topic]
        return self.topics[topic].partitions


def begins_earliest(config: StreamsConfig) -> bool:
    reset = config.consumer_config("").get("auto.offset.reset")
    return reset in ("earliest", "smallest", "beginning")


# Backoff and warnings while committed offsets are undecided.


_WAIT_MIN_S = 0.1
_WAIT_MAX_S = 1.0
WARN_AFTER_S = 30.0
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
        self._wait_s = _WAIT_MIN_S
        self._next_s = 0.0
        self._since_s: float | None = None
        self._warn_after_s = WARN_AFTER_S

    def wait_s(self, *, busy: bool) -> float | None:
        """Return how long to wait for an answer now, or None if the next request is not due."""
        if not busy:
            return _WAIT_MAX_S
        return self._wait_s if self._clock.monotonic_s() >= self._next_s else None

    def increase(self, undecided: Sequence[TopicPartition]) -> None:
        """Double the backoff, and log undecided partitions."""
        now_s = self._clock.monotonic_s()
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, _WAIT_MAX_S)
        self._log_undecided(now_s, [str(tp) for tp in undecided])

    def _log_undecided(self, now_s: float, partitions: list[str]) -> None:
        if self._since_s is None:
            self._since_s = now_s
            self._log.info("offsets_undecided", partitions=partitions)
            return
        waited_s = now_s - self._since_s
        if waited_s < self._warn_after_s:
            return
        self._warn_after_s = 2 * waited_s
        self._log.warning(
            "offsets_undecided",
            partitions=partitions,
            waited_s=round(waited_s, 1),
            reason="a transaction that wrote these offsets has not ended, so they are unknown",
            next=f"the request is repeated; logged again in {waited_s:.0f} s",
            advice=_ADVICE,
        )


# A task that a worker owns, and the cluster metadata for its start.


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

    It is waiting until its start metadata is known and its directory is open, and again after each
    stop; then restoring, if changelogs have more than its local state; then running.
    """

    id: TaskId
    plan: SubPlan
    subscribed_topic: str
    """Topic whose partitions the consumer group assigns."""
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
    sink_position: StartPosition | None = None
    """Position of its external sink at the start, if it has a sink."""

    @property
    def reads_directly(self) -> bool:
        """Whether it writes to an external sink and reads no repartition topic."""
        return self.plan.sink_node is not None and self.plan.sink_node.reads_directly

    @property
    def state(self) -> str:
        if self.is_running:
            return "running"
        return "waiting" if self.task is None else "restoring"


@dataclass(frozen=True, slots=True)
class StartMetadata:
    """Cluster metadata for the start of tasks."""

    owned_tasks: Sequence[OwnedTask]
    committed: Mapping[TopicPartition, CommittedOffset | None]
    first: Mapping[TopicPartition, int]
    changelogs: Mapping[TopicPartition, ChangelogDescription]
    topic_ids: Mapping[str, str]
    sink_positions: Mapping[TaskId, StartPosition]
    """Positions of external sinks."""


def fetch_start_metadata(
    metadata: ClusterMetadata,
    owned_tasks: Sequence[OwnedTask],
    committed: Mapping[TopicPartition, CommittedOffset | None],
    sinks: SinkConnections,
) -> StartMetadata:
    """Request the metadata that a start needs besides committed offsets; run in the background."""
    topics = dict.fromkeys(tp.topic for owned in owned_tasks for tp in owned.inputs)
    logs = dict.fromkeys(t for owned in owned_tasks for t in owned.plan.changelogs.values())
    # Request the IDs before the offsets, so that a later re-creation of a topic is detected.
    topic_ids = metadata.topic_ids({**topics, **logs})
    unknown = [p for owned in owned_tasks for p in owned.inputs if committed[p] is None]
    changelogs = [
        TopicPartition(topic, owned.id.partition)
        for owned in owned_tasks
        for topic in owned.plan.restored_from
    ]
    # The log describes the records that are read again because of a missing offset.
    changelogs += [tp for owned in owned_tasks for tp in owned.lost]
    return StartMetadata(
        owned_tasks,
        committed,
        metadata.first_offsets(unknown) if unknown else {},
        metadata.changelogs(changelogs) if changelogs else {},
        topic_ids,
        request_sink_positions(sinks, owned_tasks, topic_ids),
    )


def request_sink_positions(
    connections: SinkConnections, tasks: Iterable[OwnedTask], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    """Request the positions of external sinks; run in the background."""
    by_plan: dict[int, list[OwnedTask]] = {}
    for task in tasks:
        if task.plan.sink_node is not None:
            by_plan.setdefault(task.plan.id, []).append(task)
    positions: dict[TaskId, StartPosition] = {}
    for tasks_of_plan in by_plan.values():
        positions |= _request_positions_of(connections, tasks_of_plan, topic_ids)
    return positions


def _request_positions_of(
    connections: SinkConnections, tasks: Sequence[OwnedTask], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    node = tasks[0].plan.sink_node
    assert node is not None
    assert node.external_sink is not None
    (topic,) = {tp.topic for task in tasks for tp in task.inputs}
    # A re-created topic has different records at the same offsets.
    source = f"{topic}@{topic_ids[topic]}" if topic in topic_ids else topic
    partitions = [task.id.partition for task in tasks]
    answer = connections.positions(node.name, node.external_sink, source, partitions)
    if isinstance(answer, SinkUnavailableError):
        return {task.id: StartPosition(source, error=answer) for task in tasks}
    name, batching = connections.name_of(node.name), connections.batching(node.name)
    return {
        task.id: StartPosition(source, answer.get(task.id.partition), batching=batching, name=name)
        for task in tasks
    }


def require_same_topics(owned: OwnedTask, start: Offsets, topic_ids: Mapping[str, str]) -> None:
    """Raise if an input topic was re-created, and record the current topic IDs."""
    known = {
        tp.topic: committed_id(tp.topic, OffsetMetadata.decode(c.metadata).values)
        for tp, c in start.items()
    }
    committed = {topic: topic_id for topic, topic_id in known.items() if topic_id is not None}
    require_same({**owned.topic_ids, **committed}, topic_ids)
    owned.topic_ids = {tp.topic: topic_ids[tp.topic] for tp in start if tp.topic in topic_ids}


def drop_unlogged(
    owned: OwnedTask, committed: Mapping[TopicPartition, CommittedOffset | None], log: Log
) -> None:
    """Empty unlogged stores that belong to another commit than the offsets do."""
    assert owned.home is not None
    # Ignore inputs without a committed offset.
    offsets = [offset for offset in committed.values() if offset is not None]
    ids = {OffsetMetadata.decode(offset.metadata).values.get(COMMIT_ID) for offset in offsets}
    for store in owned.plan.program.sub_topology.stores:
        if store.spec.logged:
            continue
        position = owned.home.state.position(store.name)
        if position is None or {position.commit_id} != ids:
            owned.home.state.drop_store(store.name)
        if position is not None and {position.commit_id} != ids:
            log.warning(
                "store_dropped",
                task=str(owned.id),
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
        send_dead_letter: the send function of tasks with external sinks.
        upstream: the inputs whose times bound the stream time of tasks.
    """

    def __init__(
        self,
        *,
        plans: Sequence[SubPlan],
        partitions: Mapping[str, int],
        consumer: Consumer,
        restorer: Restorer,
        metadata: ClusterMetadata,
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
        send_dead_letter: Send,
        record_limit: Callable[[str], int | None] = lambda _: None,
        max_ahead_ms: int = LAST_TIME_MS,
        upstream: Upstream | None = None,
    ) -> None:
        self._plans_by_topic = {plan.subscribed_topic(partitions): plan for plan in plans}
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
        self._metadata = metadata
        self._open_home = open_home
        self._make_send = make_send
        self._lost_offsets = lost_offsets
        self._read_cache_bytes = read_cache_bytes
        self._sinks = sinks
        self._send_dead_letter = send_dead_letter
        self._record_limit = record_limit
        self._max_ahead_ms = max_ahead_ms
        self._upstream = upstream or Upstream()
        self._handlers = handlers or Handlers()
        self._make_context = make_context or (lambda task_id: TaskContext(task_id=str(task_id)))
        self._global_views = global_views or {}
        self._clock = clock
        self._owned: dict[TaskId, OwnedTask] = {}
        self._readers: dict[TopicPartition, Task] = {}
        self._backoff = Backoff(clock, log)
        self._request = BackgroundRequest[StartMetadata](background)
        self._log = log
        self.key_sample = KeySample(plans, partitions, log)
        self.dropped: dict[tuple[str, str], int] = {}
        self.skews: dict[str, SkewSnapshot | None] = {}
        """Skew between the upstream inputs of each repartition topic, set by `UpstreamTimes`."""

    @property
    def subscribed_topics(self) -> list[str]:
        """Subscribed topics: a single topic for each sub-topology."""
        return sorted(self._plans_by_topic)

    @property
    def subscribed_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer group must assign."""
        return frozenset(
            TopicPartition(topic, partition)
            for topic in self._plans_by_topic
            for partition in range(self._partitions[topic])
        )

    @property
    def running(self) -> list[Task]:
        return list(dict.fromkeys(self._readers.values()))

    def bound_caches(self, other_caches: Iterable[BoundedCache]) -> None:
        """Limit the read caches of all stores, and other caches, which belong to no task."""
        buffers = [buffer for task in self.running for buffer in task.buffers]
        bound_caches((*buffers, *other_caches), self._read_cache_bytes)

    @property
    def owned(self) -> list[TaskId]:
        return sorted(self._owned)

    def has_all_of(self, sub_topology: int) -> bool:
        own = sum(task_id.sub_topology == sub_topology for task_id in self._owned)
        topics = [t for t, plan in self._plans_by_topic.items() if plan.id == sub_topology]
        return own == sum(self._partitions[topic] for topic in topics)

    @property
    def are_waiting(self) -> bool:
        """Whether a task waits for the cluster or for another worker."""
        return any(owned.task is None for owned in self._owned.values())

    @property
    def has_unknown(self) -> bool:
        """Whether the group has assigned partitions that this worker does not know yet."""
        return not all(map(self._is_known, self._owned.values()))

    def _is_known(self, owned: OwnedTask) -> bool:
        return owned.id.partition < self._partitions[owned.subscribed_topic]

    @property
    def all_running(self) -> bool:
        return all(owned.is_running for owned in self._owned.values())

    def states(self) -> dict[TaskId, tuple[str, Task | None]]:
        return {id_: (owned.state, owned.task) for id_, owned in sorted(self._owned.items())}

    def sub_topology_of(self, node: str) -> int:
        return self._sub_topologies[node]

    def reader_of(self, tp: TopicPartition) -> Task | None:
        return self._readers.get(tp)

    # -- assignment --------------------------------------------------------------------------

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        for topic, partition in tps:
            plan = self._plans_by_topic[topic]
            task_id = TaskId(plan.id, partition)
            if task_id not in self._owned:
                self._owned[task_id] = OwnedTask(
                    task_id, plan, topic, counted=self._counted[plan.id]
                )

    def ids_of(self, tps: Iterable[TopicPartition]) -> list[TaskId]:
        ids = [TaskId(self._plans_by_topic[topic].id, partition) for topic, partition in tps]
        return [task_id for task_id in ids if task_id in self._owned]

    def describe_inputs(self, tps: Iterable[TopicPartition]) -> list[str]:
        """Return subscribed partitions and all other inputs of their tasks as text, for the log."""
        inputs = set[TopicPartition](tps)
        for topic, partition in list(inputs):
            inputs.update(self._plans_by_topic[topic].inputs(partition, self._partitions))
        return [str(tp) for tp in sorted(inputs)]

    def release(self, ids: Iterable[TaskId]) -> None:
        """Close owned tasks; uncommitted work is discarded."""
        for task_id in list(ids):
            owned = self._owned.pop(task_id, None)
            if owned is None:
                continue
            self._close_task(owned)
            if owned.home is not None:
                owned.home.close()
        if not self._owned:
            self._sinks.close()

    # -- rebuilding --------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Re-create running tasks; restores continue, because they read only committed records."""
        for owned in self._owned.values():
            if owned.is_running:
                self._close_task(owned)

    def rebuild_all(self) -> None:
        """End all tasks, including restores, and re-create them; local state stays."""
        for owned in self._owned.values():
            self._close_task(owned)

    def recreate(self, task: Task) -> None:
        """Re-create a task from its committed offsets, without affecting other tasks."""
        self._close_task(self._owned[task.id])

    def wipe(self, names: Iterable[str]) -> None:
        """Rebuild the local state of tasks from their changelogs."""
        wanted = set(names)
        for owned in self._owned.values():
            if str(owned.id) in wanted and owned.home is not None:
                self._close_task(owned, keep_restored=False)
                owned.home.wipe()

    def _close_task(self, owned: OwnedTask, *, keep_restored: bool = True) -> None:
        if owned.task is None:
            return
        if owned.is_running:
            owned.is_running = False
            self._consumer.remove(owned.inputs)
            for tp in owned.inputs:
                del self._readers[tp]
        task, owned.task = owned.task, None
        owned.is_committed = task.is_committed
        self._restorer.cancel(task, keep=keep_restored)
        for node, error in task.close():
            self._log.warning(
                "processor_close_failed", task=str(task.id), node=node, error=type(error).__name__
            )

    # -- start -------------------------------------------------------------------------------

    def unanswered_sinks(self) -> Mapping[str, str]:
        return self._sinks.unanswered()

    def _may_start(self, owned: OwnedTask) -> bool:
        node = owned.plan.sink_node
        return node is None or self._sinks.is_due(node.name)

    def advance(self) -> None:
        """Advance the start of tasks that are not running, without blocking."""
        if self._request.is_pending:
            self._start_fetched()
            return
        waiting = [
            owned for owned in self._owned.values() if owned.task is None and self._is_known(owned)
        ]
        for owned in waiting:
            owned.inputs = owned.plan.inputs(owned.id.partition, self._partitions)
            if owned.home is None:
                owned.home = self._open_home(owned.id, owned.plan.program.sub_topology.stores)
        waiting = [owned for owned in waiting if owned.home is not None and self._may_start(owned)]
        if not waiting:
            return
        inputs = [tp for owned in waiting for tp in owned.inputs]
        # Committed offsets first, then the changelogs' ends: see headrace.streams.tasks.restore.
        committed = self._committed(inputs)
        if committed is None:
            return
        for owned in waiting:
            own = {tp: committed[tp] for tp in owned.inputs}
            owned.lost = self._lost_offsets.of(owned.plan.id, own)
        self._request.submit(
            partial(fetch_start_metadata, self._metadata, waiting, committed, self._sinks)
        )
        self._start_fetched()

    def _start_fetched(self) -> None:
        metadata = self._request.poll()
        if metadata is None:
            return
        # The client fetches the first added partitions immediately, and the rest with its next
        # request. Internal topics come last because they are empty at first and would delay others.
        for owned in sorted(metadata.owned_tasks, key=lambda owned: owned.plan.reads_own_alone):
            if self._owned.get(owned.id) is owned:
                self._start_at(owned, metadata)

    def _start_at(self, owned: OwnedTask, metadata: StartMetadata) -> None:
        committed = {tp: metadata.committed[tp] for tp in owned.inputs}
        start: Offsets = {p: c or CommittedOffset(metadata.first[p]) for p, c in committed.items()}
        # Check for a re-created topic first: it explains a sink without a position.
        require_same_topics(owned, start, metadata.topic_ids)
        owned.sink_position = metadata.sink_positions.get(owned.id)
        if owned.sink_position is not None:
            node = owned.plan.sink_node
            assert node is not None
            if owned.sink_position.error is not None:
                self._sinks.unavailable(node.name, owned.sink_position.error)
                return
            is_committed = None not in committed.values()
            group = start
            start = sink_offsets(
                start, owned.sink_position, node, self._log, is_committed=is_committed
            )
            if start != group:
                owned.is_committed = False  # commit the sink's position even without new records
            if owned.sink_position.position is not None:
                owned.lost = ()  # the sink's position replaces the missing offset
        owned.changelog_ids = require_same_changelogs(
            owned.id, owned.plan.changelogs, start, metadata.topic_ids
        )
        if owned.lost:
            owned.effects = effects_of(owned.lost, start, metadata.changelogs)
            has_counted = self._lost_offsets.has_counted(owned.plan.id, committed)
            if has_counted and not self._starts_without_offsets(owned):
                return
        self._create_task(owned, committed, start, metadata.changelogs)

    def _committed(
        self, inputs: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        busy = bool(self._readers)
        wait_s = self._backoff.wait_s(busy=busy)
        if wait_s is None:
            return None
        committed = self._consumer.committed(inputs, wait_s)
        if committed is None:
            self._backoff.increase(inputs)
        else:
            self._backoff.reset()
        return committed

    def _create_task(
        self,
        owned: OwnedTask,
        committed: Mapping[TopicPartition, CommittedOffset | None],
        start: Offsets,
        changelogs: Mapping[TopicPartition, ChangelogDescription],
    ) -> None:
        assert owned.home is not None
        with corruption_of(owned.id):
            drop_unlogged(owned, committed, self._log)
        writers = {
            topic.name: self._upstream.writers[topic.name]
            for topic in owned.plan.topics.repartition_sources
            if topic.name in self._upstream.writers
        }
        owned.task = Task(
            spec=owned.plan.task(
                owned.id.partition,
                partitions_of=self._metadata.partitions_of,
            ),
            state=owned.home.state,
            start=start,
            send=self._send_of(owned.plan),
            dropped=partial(self._drop, owned),
            handlers=self._handlers,
            context=self._make_context(owned.id),
            global_views=self._global_views,
            now_ms=self._clock.now_ms,
            record_limit=self._record_limit,
            max_ahead_ms=self._max_ahead_ms,
            log=self._log,
            topic_ids=owned.topic_ids,
            changelog_ids=owned.changelog_ids,
            followed=frozenset(writers),
            partition_for_key=self._metadata.partition_for_key,
            is_time_bounded=any(w.are_many(self._partitions) for w in writers.values()),
            repartitions=self._upstream.written(owned.plan.id),
            is_committed=owned.is_committed,
        )
        if owned.sink_position is not None:
            position = owned.sink_position
            owned.task.context.outbox.begin(
                position.source,
                position.position,
                position.batching,
                is_first=owned.reads_directly
                and position.position is None
                and None in committed.values(),
            )
        if not self._restorer.begin(owned.task, changelogs):
            self.run(owned.task)

    def _send_of(self, plan: SubPlan) -> Send:
        if plan.sink_node is not None:
            return self._send_dead_letter
        send = self._make_send()
        return (
            known_topics_alone(send, self._metadata.partitions_of) if plan.chooses_topics else send
        )

    def run(self, task: Task) -> None:
        """Start reading the input of a task whose state is complete."""
        owned = self._owned[task.id]
        assert owned.task is task
        with corruption_of(task.id):
            if owned.lost and has_rows(task) and not self._starts_without_offsets(owned):
                return
        task.begin()
        self._consumer.add(task.next_offset)
        owned.is_running = True
        for tp in owned.inputs:
            self._readers[tp] = task
        self._log.info(
            "task_started",
            task=str(task.id),
            offsets={str(tp): offset for tp, offset in task.next_offset.items()},
        )

    def _starts_without_offsets(self, owned: OwnedTask) -> bool:
        """Return whether a task with state starts although offsets are missing.

        At the first attempt the offsets are requested again, because another worker may have owned
        the task in the meantime.
        """
        if not owned.lacked_offsets:
            owned.lacked_offsets = True
            self._close_task(owned)
            return False
        others = [tp for other in self._owned.values() for tp in other.lost]
        self._lost_offsets.handle(str(owned.id), owned.counted, owned.lost, owned.effects, others)
        owned.lost = ()
        return True

    def _drop(self, owned: OwnedTask, node: str, reason: str) -> None:
        count = self.dropped[node, reason] = self.dropped.get((node, reason), 0) + 1
        if is_log_worthy(count):  # describe the last record
            repartitions = {topic.name for topic in owned.plan.topics.repartition_sources}
            last = dropped_record(
                owned.task,
                reason,
                unfollowed=repartitions - self._upstream.writers.keys(),
                skews=self.skews,
            )
            self._log.warning(
                "records_dropped",
                node=node,
                reason=reason,
                count=count,
                task=str(owned.id),
                **last,
            )
