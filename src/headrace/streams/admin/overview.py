"""Status of an application as seen on its cluster; plain data, collected by `inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.streams.errors import (
    ChangelogUnfinishedError,
    FatalClientError,
    ResetUnfinishedError,
)
from headrace.streams.kafka.offset_texts import format_partitions
from headrace.streams.kafka.protocols import (
    AdminClient,
    Clock,
    CommittedOffset,
    Consumer,
    GroupState,
    Member,
    TopicPartition,
)
from headrace.streams.metrics.snapshots import SkewSnapshot, skew_of
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.plan.topics import describe_as
from headrace.topology.serdes.partials import call_of

_POLL_S = 0.1
_RECORDS = 500


@dataclass(frozen=True, slots=True)
class InputLag:
    """Lag of a task in an input partition.

    Args:
        internal: whether it is a repartition topic of the application.
        committed: the committed offset; None before the first commit.
        begin: the offset of the first existing record.
        end: the last stable offset: after all completed transactions.
        event_time_ms: the committed event time in milliseconds since 1970, or -1.
    """

    task: TaskId
    tp: TopicPartition
    internal: bool
    committed: int | None
    begin: int
    end: int
    event_time_ms: int = -1

    @property
    def lag(self) -> int:
        """Lag in offsets, including transaction markers and aborted records.

        >>> InputLag(TaskId(0, 1), TopicPartition("in", 1), False, None, 5, 8).lag
        3
        """
        return max(0, self.end - self.next_offset)

    @property
    def next_offset(self) -> int:
        """Offset of the next record to read, if any exists."""
        return self.begin if self.committed is None else max(self.begin, self.committed)


@dataclass(frozen=True, slots=True)
class TaskView:
    """Task with its worker and its lag.

    Args:
        member: the worker that the group assigned it to; None if it is unassigned.
    """

    id: TaskId
    member: Member | None
    inputs: tuple[InputLag, ...]

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.inputs)

    @property
    def event_time_ms(self) -> int:
        """Committed event time of the input that is furthest, in milliseconds since 1970, or -1."""
        return max((one.event_time_ms for one in self.inputs), default=-1)


@dataclass(frozen=True, slots=True)
class Overview:
    """Status of an application on its cluster.

    Args:
        missing: inputs that do not exist.
        unmade: missing topics that the next start creates, if no worker has committed yet.
    """

    application_id: str
    group: GroupState
    tasks: tuple[TaskView, ...]
    missing: tuple[str, ...] = ()
    unmade: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """Missing topics that should exist.

        >>> dead = GroupState("dead", {})
        >>> Overview("a", dead, (), missing=("in", "a-by-repartition"),
        ...          unmade=("a-by-repartition",)).lost
        ('in',)
        """
        return tuple(name for name in self.missing if name not in self.unmade)

    @property
    def lag(self) -> int:
        return sum(task.lag for task in self.tasks)

    @property
    def inputs(self) -> list[InputLag]:
        found = [input_ for task in self.tasks for input_ in task.inputs]
        return sorted(found, key=lambda input_: (input_.task.sub_topology, input_.tp))

    def skews(self) -> dict[int, SkewSnapshot]:
        """Return the skew in event time between the partitions of each sub-topology.

        A partition without a lag is idle. Sub-topologies without a skew are omitted.
        """
        skews = {}
        for sub, inputs in groupby(self.inputs, key=lambda one: one.task.sub_topology):
            some = list(inputs)
            times = {str(one.tp): one.event_time_ms for one in some}
            skew = skew_of(times, {str(one.tp) for one in some if not one.lag})
            if skew is not None and skew.extent > (False, 0):
                skews[sub] = skew
        return skews

    def without_worker(self) -> list[TaskId]:
        return [task.id for task in self.tasks if task.member is None]


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Lag of a sub-topology in a topic, over all partitions."""

    sub_topology: int
    topic: str
    internal: bool
    partitions: int
    lag: int
    largest: int


def by_topic(inputs: Iterable[InputLag]) -> list[TopicLag]:
    """Aggregate lags by sub-topology and topic.

    >>> inputs = [InputLag(TaskId(0, p), TopicPartition("in", p), False, 2, 0, 5 + p)
    ...           for p in range(2)]
    >>> (one,) = by_topic(inputs)
    >>> one.partitions, one.lag, one.largest
    (2, 7, 4)
    """
    groups: dict[tuple[int, str], list[InputLag]] = {}
    for input_ in inputs:
        groups.setdefault((input_.task.sub_topology, input_.tp.topic), []).append(input_)
    return [
        TopicLag(
            sub_topology,
            topic,
            some[0].internal,
            len(some),
            sum(input_.lag for input_ in some),
            max(input_.lag for input_ in some),
        )
        for (sub_topology, topic), some in groups.items()
    ]


def leads_of(
    plans: Iterable[SubPlan],
    partitions: Mapping[str, int],
    members: Mapping[Member, Sequence[TopicPartition]],
) -> dict[int, str]:
    """Prefer an assigned topic: after a rolling upgrade the group keeps the previous version's."""
    assigned = {tp.topic for tps in members.values() for tp in tps}
    leads = {}
    for plan in plans:
        lead = plan.subscribed_topic(partitions)
        present = [topic for topic in plan.topics.all_sources if topic in assigned]
        leads[plan.id] = lead if lead in present or not present else present[0]
    return leads


def owner_of(
    leads: Mapping[int, str], members: Mapping[Member, Sequence[TopicPartition]]
) -> dict[TaskId, Member]:
    """Return each task's worker: the group assigns the subscribed topic of each sub-topology."""
    owners = {tp: member for member, tps in members.items() for tp in tps}
    return {
        TaskId(sub_topology, tp.partition): member
        for sub_topology, topic in leads.items()
        for tp, member in owners.items()
        if tp.topic == topic
    }


# Collection of the status from a cluster.


def inspect(application_id: str, plans: Sequence[SubPlan], cluster: AdminClient) -> Overview:
    """Read the lag of each task: committed offsets first, so that no lag is negative."""
    names = dict.fromkeys(name for plan in plans for name in plan.topics.all_sources)
    descriptions = describe_as(cluster, names)
    counts = {name: found.partitions for name, found in descriptions.items()}
    group = cluster.group_state(application_id)
    tps = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
    committed = cluster.committed_offsets(application_id, tps) if tps else {}
    begins = cluster.start_offsets(tps) if tps else {}
    ends = cluster.stable_offsets(tps) if tps else {}
    present = [plan for plan in plans if all(t in counts for t in plan.topics.all_sources)]
    owners = owner_of(leads_of(present, counts, group.members), group.members)
    tasks = [
        TaskView(
            task, owners.get(task), tuple(_inputs(plan, task, counts, committed, begins, ends))
        )
        for plan in present
        for task in (TaskId(plan.id, p) for p in range(counts[plan.subscribed_topic(counts)]))
    ]
    missing = tuple(name for name in names if name not in counts)
    # Before the first commit, internal topics need not exist.
    unmade = unmade_of(plans, missing)
    if any(found.metadata for found in committed.values()):  # of a worker rather than a reset
        unmade = ()
    return Overview(application_id, group, tuple(tasks), missing, unmade)


def unread_partials(
    inputs: Iterable[InputLag], consumer: Consumer, *, clock: Clock, timeout_s: float
) -> int:
    """Return the number of partial aggregates in the unread records of repartition topics."""
    left = {one.tp: one for one in inputs if one.internal and one.lag}
    consumer.add({tp: one.next_offset for tp, one in left.items()})
    count = 0
    give_up_at_s = clock.monotonic_s() + timeout_s
    while left:
        batches = consumer.poll(_RECORDS, _POLL_S)
        for tp, messages in batches.items():
            unread = [message for message in messages if message.offset() < left[tp].end]
            count += sum(call_of(message.headers() or ()) is not None for message in unread)
        positions = consumer.positions(list(left))
        over = [tp for tp, one in left.items() if positions.get(tp, -1) >= one.end]
        consumer.remove(over)
        left = {tp: one for tp, one in left.items() if tp not in over}
        now_s = clock.monotonic_s()
        give_up_at_s = now_s + timeout_s if batches else give_up_at_s
        if left and now_s > give_up_at_s:
            raise FatalClientError(
                f"cannot read {format_partitions(left)} for {timeout_s:.0f} s; check that the "
                "brokers at bootstrap.servers are running, or raise task.timeout.ms"
            )
    return count


def unmade_of(plans: Sequence[SubPlan], missing: Iterable[str]) -> tuple[str, ...]:
    repartition_topics = {topic.name for plan in plans for topic in plan.topics.repartition_sources}
    return tuple(name for name in missing if name in repartition_topics)


def _inputs(
    plan: SubPlan,
    task: TaskId,
    counts: Mapping[str, int],
    committed: Mapping[TopicPartition, CommittedOffset],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Iterator[InputLag]:
    internal = {topic.name for topic in plan.topics.repartition_sources}
    for tp in plan.inputs(task.partition, counts):
        offset = committed.get(tp)
        yield InputLag(
            task=task,
            tp=tp,
            internal=tp.topic in internal,
            committed=None if offset is None else offset.offset,
            begin=begins[tp],
            end=ends[tp],
            event_time_ms=-1 if offset is None else event_time_of(offset.metadata),
        )


def event_time_of(metadata: str) -> int:
    """Return the event time in the metadata of a committed offset, in milliseconds, or -1."""
    try:
        return OffsetMetadata.decode(metadata).event_time
    except (ResetUnfinishedError, ChangelogUnfinishedError):
        return -1
