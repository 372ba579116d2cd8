"""Asks a cluster how an application is doing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.topics import describe_as
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.seams.group_facts import GroupState
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.views.overview import InputLag, Overview, TaskView, leads_of, owner_of


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
