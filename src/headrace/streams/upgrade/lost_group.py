"""Looks, before a worker joins its group, whether offsets are gone: of the whole application.

A task sees its own offsets alone, and one that has none looks like one that begins. Where all are
gone, tasks with state know it by their rows, and those in front of them do not: they would write a
repartition topic once more. So this is judged for all tasks together, before anyone writes.

That a task has committed is shown by what nothing but its commits can make:

1. progress beside the offset of another one of its inputs,
2. a committed record in one of its changelogs,
3. a committed record in a repartition topic that its sub-topology writes, or the offset of one who
   has read such a record, where no offset of the sub-topology bears progress.

Ends of topics, where they start, and offsets that moved past markers show nothing: aborted first
transactions move all of them. What is shown was committed together with offsets of the task, so
these are asked for again, once they are decided: if another worker's first commit is on its way,
they are there now, and if they are not, they are gone.

At-least-once writes before it commits, so there 3 means offsets alone, and what is found is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.config.config import StreamsConfig
from headrace.streams.deployed.deployment import Deployment
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import CHANGELOG_MARK, RESET_MARK, Progress
from headrace.streams.plan.topic_plan import TopicPlan
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.seams.clients import CommittedOffset, Log, TopicPartition
from headrace.streams.seams.place_ranges import named_places, named_tasks, topic_options
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.tasks.cluster_facts import ClusterFacts, begins_earliest
from headrace.streams.tasks.lost_offsets import (
    Counted,
    ReadBefore,
    StateWithoutOffsetsError,
    effects_of,
    has_run,
    lost_inputs,
    read_before,
    way_around,
    way_out,
)
from headrace.streams.upgrade.committed_records import CommittedRecords

Found = dict[TopicPartition, CommittedOffset]


class OffsetsAt(Protocol):
    """What is asked about the application's group; the live one is `MemberlessGroup`."""

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool = ...
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at some places.

        With `decided`, once no open transaction may change one; otherwise those of before it.
        """


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A task, and what it reads: also of topics that are still to be made."""

    plan: SubPlan
    partition: int
    inputs: tuple[TopicPartition, ...]

    def committed(self, found: Found) -> dict[TopicPartition, CommittedOffset | None]:
        return {place: found.get(place) for place in self.inputs}

    @property
    def changelogs(self) -> list[TopicPartition]:
        return [TopicPartition(topic, self.partition) for topic in self.plan.changelogs.values()]


Lost = Mapping[_Task, Sequence[TopicPartition]]
"""By task: its inputs whose offsets were there once, or may have been."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """Who has committed: tasks, and sub-topologies of which it is not known which tasks."""

    tasks: frozenset[_Task]
    subs: frozenset[int]

    def of(self, tasks: Iterable[_Task], found: Found) -> list[_Task]:
        """The tasks of which that is so, with the offsets that are there."""
        silent = {t.plan.id for t in tasks if not _has_progress(t.plan, found)}
        return [t for t in tasks if t in self.tasks or t.plan.id in silent & self.subs]


class LostGroup:
    """See the module.

    Args:
        deployed: the version that started last, where it is known.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        offsets: OffsetsAt,
        records: CommittedRecords,
        deployed: Deployment | None,
        log: Log,
    ) -> None:
        self._config = config
        self._group = config.application_id
        self._plans = plans
        self._offsets = offsets
        self._records = records
        self._before = read_before(deployed, plans, self._group)
        self._counted = {plan.id: Counted.by(plan, plans) for plan in plans}
        self._log = log

    def __call__(
        self, admin: TopicAdmin, plan: TopicPlan, facts: Mapping[str, TopicFacts]
    ) -> frozenset[TopicPartition]:
        """Look at all tasks.

        Returns:
            The inputs without offsets of which it was said what follows.

        Raises:
            StateWithoutOffsetsError: under exactly-once, where records would be counted twice.
        """
        if not any(self._counted.values()):
            return frozenset()
        counts = {topic.name: topic.partitions for topic in plan.internal}
        counts |= {name: found.partitions for name, found in facts.items()}
        tasks = list(_tasks(self._plans, counts))
        there = {place for task in tasks for place in task.inputs if place.topic in facts}
        found = self._offsets.committed_at(self._group, sorted(there), decided=False)
        if len(found) == len(there) or _is_marked(found):
            return frozenset()
        lost = self._lost(tasks, found)
        shown = self._shown(admin, lost, found, facts)
        if not shown.of(lost, found):
            return frozenset()
        asked = {place for places in lost.values() for place in places} & there
        if not self._config.exactly_once:
            self._records.pause()  # rows are there a moment before the offsets
        found |= self._offsets.committed_at(self._group, sorted(asked), decided=True)
        lost = self._lost(shown.of(lost, found), found)
        if lost and not any(_has_progress(sub, found) for sub in self._plans):
            # The whole group is gone, with what nothing shows too.
            lost = {t: p for t, p in self._lost(tasks, found).items() if self._of(t).has_state}
        places = {place for some in lost.values() for place in some} & there
        if places:
            self._meet(admin, lost, places, facts)
        return frozenset(places)

    def _lost(self, tasks: Iterable[_Task], found: Found) -> Lost:
        lost = {}
        for task in tasks:
            inputs = lost_inputs(task.committed(found), self._of(task))
            if inputs:
                lost[task] = inputs
        return lost

    def _of(self, task: _Task) -> ReadBefore:
        return self._before.get(task.plan.id, ReadBefore())

    # -- what shows that tasks have committed --------------------------------------------------

    def _shown(
        self, admin: TopicAdmin, lost: Lost, found: Found, facts: Mapping[str, TopicFacts]
    ) -> _Shown:
        """Who has committed, of those who count."""
        tasks = [task for task in lost if self._counted[task.plan.id]]
        shown = {t for t in tasks if has_run(t.committed(found)) and self._of(t).has_state}
        written = {
            task.plan.id: self._written(task.plan, facts)
            for task in tasks
            if not _has_progress(task.plan, found)
        }
        subs = {sub for sub, to in written.items() if any(map(_has_read, _at(to, found)))}
        changelogs = {
            task: {place for place in task.changelogs if _is_there(place, facts)}
            for task in tasks
            if task not in shown and task.plan.id not in subs
        }
        asked = {place for places in changelogs.values() for place in places}
        if self._config.exactly_once:
            asked |= {place for sub, to in written.items() if sub not in subs for place in to}
        held = self._records.among(admin, asked) if asked else set()
        shown |= {task for task, places in changelogs.items() if held & places}
        subs |= {sub for sub, to in written.items() if held.intersection(to)}
        return _Shown(frozenset(shown), frozenset(subs))

    @staticmethod
    def _written(sub: SubPlan, facts: Mapping[str, TopicFacts]) -> list[TopicPartition]:
        """The partitions that nobody else writes to, between this sub-topology and others."""
        return [
            TopicPartition(topic, partition)
            for topic in sub.topics.repartition_sinks
            if topic in facts
            for partition in range(facts[topic].partitions)
        ]

    # -- what follows --------------------------------------------------------------------------

    def _meet(
        self,
        admin: TopicAdmin,
        lost: Lost,
        places: set[TopicPartition],
        facts: Mapping[str, TopicFacts],
    ) -> None:
        by_sub: dict[int, list[int]] = {}
        for task in lost:
            by_sub.setdefault(task.plan.id, []).append(task.partition)
        where = named_places(places)
        lacks = f"the group {self._group} has no committed offsets for {where}"
        tasks = {sub: named_tasks(sub, some) for sub, some in sorted(by_sub.items())}
        counts = {name: found.partitions for name, found in facts.items()}
        if self._config.exactly_once:
            effects = "; ".join(
                f"{self._counted[sub]} ({named})"
                for sub, named in tasks.items()
                if self._counted[sub]
            )
            out = way_out(topic_options(places, counts))
            raise StateWithoutOffsetsError(
                f"the application {self._group} {effects}, but {lacks}: {out}"
            )
        counted = [self._counted[sub] for sub in tasks]
        self._log.error(
            "records_counted_twice",
            tasks=list(tasks.values()),
            stores=[store for one in counted for store in one.stores],
            writes_to=[topic for one in counted for topic in one.written],
            partitions=self._effects(admin, places, facts),
            reason=f"{lacks} any more, {way_around(topic_options(places, counts))}",
        )

    def _effects(
        self, admin: TopicAdmin, places: set[TopicPartition], facts: Mapping[str, TopicFacts]
    ) -> Mapping[str, str]:
        resets = {topic: r for plan in self._plans for topic, r in plan.offset_resets.items()}
        asked = ClusterFacts(admin, dict(facts), begins_earliest(self._config), resets)
        some = sorted(places)
        start = {p: CommittedOffset(first) for p, first in asked.first_offsets(some).items()}
        return effects_of(some, start, asked.changelogs(some))


def _tasks(plans: Sequence[SubPlan], counts: Mapping[str, int]) -> Iterator[_Task]:
    for plan in plans:
        for partition in range(max(counts[topic] for topic in plan.topics.all_sources)):
            yield _Task(plan, partition, tuple(plan.inputs(partition, counts)))


def _is_there(place: TopicPartition, facts: Mapping[str, TopicFacts]) -> bool:
    return place.topic in facts and place.partition < facts[place.topic].partitions


def _is_marked(found: Found) -> bool:
    """Whether the application is being reset, or its changelogs written: each task says so."""
    return any(c.metadata.startswith((RESET_MARK, CHANGELOG_MARK)) for c in found.values())


def _has_progress(sub: SubPlan, found: Found) -> bool:
    topics = set(sub.topics.all_sources)
    return has_run({place: c for place, c in found.items() if place.topic in topics})


def _at(places: Iterable[TopicPartition], found: Found) -> Iterator[CommittedOffset]:
    return (found[place] for place in places if place in found)


def _has_read(offset: CommittedOffset) -> bool:
    """Whether an offset is of one who has read a record, and has not passed markers alone.

    One that somebody has set, without progress, says that there was something to pass.
    """
    progress = Progress.parse(offset.metadata)
    return offset.offset > 0 and (progress is None or progress.partition_time >= 0)
