"""An application as its cluster sees it at one moment; pure data, asked for by `look`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.kafka.protocols import GroupState, Member, TopicFacts, TopicPartition
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.topics import describe_as


@dataclass(frozen=True, slots=True)
class InputLag:
    """How far a task is behind in one of its input partitions.

    Args:
        internal: whether the application writes the topic itself, between two sub-topologies.
        committed: the offset that the next record has; None before the first commit.
        begin: the offset of the first record that is there.
        end: the last stable offset: behind everything whose transaction is decided.
    """

    task: TaskId
    place: TopicPartition
    internal: bool
    committed: int | None
    begin: int
    end: int

    @property
    def lag(self) -> int:
        """How many offsets lie between; markers of transactions and aborted records count too.

        >>> InputLag(TaskId(0, 1), TopicPartition("in", 1), False, None, 5, 8).lag
        3
        """
        reached = self.begin if self.committed is None else max(self.begin, self.committed)
        return max(0, self.end - reached)


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task, who has it, and how far it is behind.

    Args:
        member: the worker that the group gave it to; None while nobody has it.
    """

    id: TaskId
    member: Member | None
    inputs: tuple[InputLag, ...]

    @property
    def lag(self) -> int:
        """The offsets that it is behind in all of its inputs."""
        return sum(one.lag for one in self.inputs)


@dataclass(frozen=True, slots=True)
class Overview:
    """An application on its cluster.

    Args:
        missing: topics that it reads and that do not exist.
        unmade: those of them that its next start makes, where no worker has committed yet.
    """

    application_id: str
    group: GroupState
    tasks: tuple[TaskView, ...]
    missing: tuple[str, ...] = ()
    unmade: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """The topics that are missing and should be there.

        >>> dead = GroupState("dead", {})
        >>> Overview("a", dead, (), missing=("in", "a-by-repartition"),
        ...          unmade=("a-by-repartition",)).lost
        ('in',)
        """
        return tuple(name for name in self.missing if name not in self.unmade)

    @property
    def lag(self) -> int:
        """The offsets that all tasks are behind."""
        return sum(task.lag for task in self.tasks)

    @property
    def inputs(self) -> list[InputLag]:
        """All input partitions, by sub-topology and topic."""
        found = [one for task in self.tasks for one in task.inputs]
        return sorted(found, key=lambda one: (one.task.sub_topology, one.place))

    def without_worker(self) -> list[TaskId]:
        """The tasks that nobody has."""
        return [task.id for task in self.tasks if task.member is None]


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far one sub-topology is behind in one topic, over its partitions."""

    sub_topology: int
    topic: str
    internal: bool
    partitions: int
    lag: int
    largest: int


def by_topic(inputs: Iterable[InputLag]) -> list[TopicLag]:
    """Lags of the same sub-topology and topic in one.

    >>> inputs = [InputLag(TaskId(0, p), TopicPartition("in", p), False, 2, 0, 5 + p)
    ...           for p in range(2)]
    >>> (one,) = by_topic(inputs)
    >>> one.partitions, one.lag, one.largest
    (2, 7, 4)
    """
    groups: dict[tuple[int, str], list[InputLag]] = {}
    for one in inputs:
        groups.setdefault((one.task.sub_topology, one.place.topic), []).append(one)
    return [
        TopicLag(
            sub_topology,
            topic,
            some[0].internal,
            len(some),
            sum(one.lag for one in some),
            max(one.lag for one in some),
        )
        for (sub_topology, topic), some in groups.items()
    ]


def leads_of(
    plans: Iterable[SubPlan],
    partitions: Mapping[str, int],
    members: Mapping[Member, Sequence[TopicPartition]],
) -> dict[int, str]:
    """The subscribed topic of each sub-topology: one that is assigned, if any of them is.

    A version that was rolled out keeps the topic of the version before, which a fresh start would
    not choose.
    """
    assigned = {place.topic for places in members.values() for place in places}
    found = {}
    for plan in plans:
        lead = plan.lead(partitions)
        kept = [topic for topic in plan.topics.all_sources if topic in assigned]
        found[plan.id] = lead if lead in kept or not kept else kept[0]
    return found


def owner_of(
    leads: Mapping[int, str], members: Mapping[Member, Sequence[TopicPartition]]
) -> dict[TaskId, Member]:
    """Who has which task: the group gives out one topic of each sub-topology, and the rest follows.

    Args:
        leads: the topic of each sub-topology that is given out.
        members: what the group gave to whom.
    """
    owners = {place: member for member, places in members.items() for place in places}
    return {
        TaskId(sub_topology, place.partition): member
        for sub_topology, topic in leads.items()
        for place, member in owners.items()
        if place.topic == topic
    }


# Asks a cluster how an application is doing.


class ViewedCluster(Protocol):
    """What is asked of a cluster."""

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""

    def group_state(self, group: str) -> GroupState:
        """A group's state, and who has what."""

    def progress(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """What a group has committed, whatever is about to be; without what it never has."""

    def has_worked(self, group: str, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a worker committed one of these offsets, and not a reset."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that is still there."""

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset."""


def look(application_id: str, plans: Sequence[SubPlan], cluster: ViewedCluster) -> Overview:
    """Find out who has which task, and how far each is behind.

    Offsets are asked for before the ends of the topics, so that no lag is negative for having been
    asked for later.

    Args:
        application_id: the application, which is also the group's name.
        plans: its sub-topologies.

    Raises:
        StreamsError: the cluster does not answer, or refuses.
    """
    names = dict.fromkeys(name for plan in plans for name in plan.topics.all_sources)
    facts = describe_as(cluster, names)
    counts = {name: fact.partitions for name, fact in facts.items()}
    group = cluster.group_state(application_id)
    places = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
    committed = cluster.progress(application_id, places) if places else {}
    begins = cluster.start_offsets(places) if places else {}
    ends = cluster.stable_offsets(places) if places else {}
    present = [plan for plan in plans if all(t in counts for t in plan.topics.all_sources)]
    owners = owner_of(leads_of(present, counts, group.members), group.members)
    tasks = [
        TaskView(
            task, owners.get(task), tuple(_inputs(plan, task, counts, committed, begins, ends))
        )
        for plan in present
        for task in (TaskId(plan.id, p) for p in range(counts[plan.lead(counts)]))
    ]
    missing = tuple(name for name in names if name not in counts)
    # Until a worker commits, there need not be what the next start makes.
    unmade = unmade_of(plans, missing)
    if unmade and committed and cluster.has_worked(application_id, committed):
        unmade = ()
    return Overview(application_id, group, tuple(tasks), missing, unmade)


def unmade_of(plans: Sequence[SubPlan], missing: Iterable[str]) -> tuple[str, ...]:
    """Those of some topics that the application makes itself."""
    own = {topic.name for plan in plans for topic in plan.topics.repartition_sources}
    return tuple(name for name in missing if name in own)


def _inputs(
    plan: SubPlan,
    task: TaskId,
    counts: Mapping[str, int],
    committed: Mapping[TopicPartition, int],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Iterator[InputLag]:
    internal = {topic.name for topic in plan.topics.repartition_sources}
    for place in plan.inputs(task.partition, counts):
        yield InputLag(
            task=task,
            place=place,
            internal=place.topic in internal,
            committed=committed.get(place),
            begin=begins[place],
            end=ends[place],
        )
