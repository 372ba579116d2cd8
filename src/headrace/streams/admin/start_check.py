"""Looks, before internal topics are created, whether creating them would hide a loss.

Offsets that are gone are looked for first (see `headrace.streams.admin.start_check`).

A changelog that is to be created while the group has read what its rows were made from is one that
was deleted, or that of a store which is called otherwise. What is deployed tells the two apart, and
so do the numbers of changelogs beside the offsets. Where neither is known, topics of the
application that the topology does not claim are all there is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.admin.reset import ApplicationTopics
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import (
    FatalClientError,
    MisconfiguredTopicError,
    OffsetLostError,
    TopologyChangedError,
)
from headrace.streams.kafka.offset_texts import named_places, named_tasks, topic_options
from headrace.streams.kafka.protocols import (
    Clock,
    CommittedOffset,
    Consumer,
    Log,
    TopicFacts,
    TopicPartition,
)
from headrace.streams.plan.changelog_identity import (
    committed_numbers,
    known_changelogs,
    lost_changelogs,
)
from headrace.streams.plan.deployed import GroupOffsets, topology_group
from headrace.streams.plan.deployment import Deployment, is_accepted
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import CHANGELOG_MARK, RESET_MARK, OffsetMetadata
from headrace.streams.plan.topic_errors import ChangelogLostError
from headrace.streams.plan.topic_plan import TopicPlan
from headrace.streams.plan.topics import TopicAdmin
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
from headrace.streams.tasks.tasks import ClusterFacts, begins_earliest

# Says which partitions hold a committed record: that a transaction is committed, and not begun.


_POLL_S = 0.1
_RECORDS = 500
_PAUSE_S = 1.0
_TRIES = 5
"""How often partitions are looked at that are shortened meanwhile."""


class CommittedRecords:
    """Reads partitions up to their first committed record.

    That a partition has an end says nothing: aborted transactions move it. Nothing is waited for:
    what is behind the last stable offset is not decided, and so not committed.

    Args:
        make_consumer: makes one without a group that reads committed records; called only where
            something is to be read.
    """

    def __init__(
        self, make_consumer: Callable[[], Consumer], *, clock: Clock, timeout_s: float
    ) -> None:
        self._make_consumer = make_consumer
        self._clock = clock
        self._timeout_s = timeout_s

    def pause(self) -> None:
        """Wait for what follows on records at once."""
        self._clock.sleep(_PAUSE_S)

    def among(self, admin: TopicAdmin, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of some partitions that hold a committed record now.

        Raises:
            FatalClientError: the brokers did not hand out what they have.
        """
        left = sorted(set(places))
        for _ in range(_TRIES):
            ends, starts = admin.stable_offsets(left), admin.start_offsets(left)
            left = [place for place in left if starts[place] < ends[place]]
            if not left:
                return set()
            try:
                return self._read({place: starts[place] for place in left}, ends)
            except OffsetLostError:
                continue  # somebody deleted records since they were asked for
        raise FatalClientError(
            f"records of {named_places(left)} were deleted again and again while they were looked "
            "for; see who deletes them, and start again"
        )

    def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        found: set[TopicPartition] = set()
        left = dict(starts)
        give_up_at_s = self._clock.monotonic_s() + self._timeout_s
        consumer = self._make_consumer()
        try:
            consumer.add(left)
            while left:
                batches = consumer.poll(_RECORDS, _POLL_S)
                positions = consumer.positions(list(left))
                over = [p for p in left if p in batches or positions.get(p, -1) >= ends[p]]
                found |= batches.keys() & left.keys()
                consumer.remove(over)
                for place in over:
                    del left[place]
                if left and self._clock.monotonic_s() > give_up_at_s:
                    raise FatalClientError(
                        f"cannot read {named_places(left)}, for {self._timeout_s:.0f} s; see that "
                        "the brokers at bootstrap.servers are up, or raise task.timeout.ms"
                    )
        finally:
            consumer.close(leave=False)
        return found


# Looks, before a worker joins its group, whether offsets are gone: of the whole application.
#
# A task sees its own offsets alone, and one that has none looks like one that begins. Where all are
# gone, tasks with state know it by their rows, and those in front of them do not: they would write
# a
# repartition topic once more. So this is judged for all tasks together, before anyone writes.
#
# That a task has committed is shown by what nothing but its commits can make:
#
# 1. progress beside the offset of another one of its inputs,
# 2. a committed record in one of its changelogs,
# 3. a committed record in a repartition topic that its sub-topology writes, or the offset of one
# who
#    has read such a record, where no offset of the sub-topology bears progress.
#
# Ends of topics, where they start, and offsets that moved past markers show nothing: aborted first
# transactions move all of them. What is shown was committed together with offsets of the task, so
# these are asked for again, once they are decided: if another worker's first commit is on its way,
# they are there now, and if they are not, they are gone.
#
# At-least-once writes before it commits, so there 3 means offsets alone, and what is found is told.


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
    """Check for lost offsets of the whole application before a worker joins its group.

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
    progress = OffsetMetadata.parse(offset.metadata)
    return offset.offset > 0 and (progress is None or progress.partition_time >= 0)


# Finds another application that owns an internal topic of this one.
#
# An internal topic is called `<application.id>-<name>`, so `orders` with a store `eu-counts` and
# `orders-eu` with a store `counts` both own `orders-eu-counts-changelog`. Both would write their
# rows
# there. A topic has no room for its owner's name, but a running application keeps a description of
# its stores and topics on the cluster (see `headrace.streams.plan.deployed`).


def require_own_topics(
    application_id: str, topics: Iterable[str], groups: Set[str], described: GroupOffsets
) -> None:
    """Raise if the description of another application has one of these internal topics.

    Args:
        groups: all groups of the cluster.

    Raises:
        MisconfiguredTopicError: the topic belongs to both.
    """
    by_owner: dict[str, list[str]] = {}
    for topic in topics:
        for owner in possible_owners(topic):
            if owner != application_id and topology_group(owner) in groups:
                by_owner.setdefault(owner, []).append(topic)
    for owner, possible in by_owner.items():
        owned = _internal_topics(owner, described)
        for topic in possible:
            if topic in owned:
                ours = topic.removeprefix(f"{application_id}-")
                raise MisconfiguredTopicError(
                    f"internal topic {topic} is {ours} of application {application_id} and "
                    f"{owned[topic]} of application {owner}, and both would write to it. Rename "
                    "one of the two stores or steps, or change one application.id; if "
                    f"{owner} does not run any more, run headrace reset for it"
                )


def possible_owners(topic: str) -> list[str]:
    """The ids of applications that may own an internal topic, by its name.

    Example:
        >>> possible_owners("orders-eu-counts-changelog")
        ['orders', 'orders-eu', 'orders-eu-counts']
    """
    parts = topic.split("-")
    return ["-".join(parts[:count]) for count in range(1, len(parts)) if any(parts[:count])]


def _internal_topics(application_id: str, described: GroupOffsets) -> dict[str, str]:
    """The internal topics that an application's description has, and what they are."""
    kept = described.committed(topology_group(application_id), decided=False).values()
    last = max(kept, key=lambda committed: committed.offset, default=None)
    deployment = None if last is None else Deployment.decode(last.metadata)
    if deployment is None:
        return {}
    changelogs = {
        f"{application_id}-{store.name}-changelog": f"the changelog of store {store.name}"
        for store in deployment.stores
        if store.logged and not store.source
    }
    named = {f"{application_id}-{topic.name}": topic.name for topic in deployment.topics}
    return changelogs | named


class StartCheck:
    """Checks of the cluster and of the deployed versions before a worker joins its group.

    Args:
        deployed: the version that started last, where it is known.
        described: reads the descriptions of other applications; None if there are none.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        offsets: OffsetsAt,
        records: CommittedRecords,
        deployed: Deployment | None,
        log: Log,
        *,
        described: GroupOffsets | None = None,
    ) -> None:
        self._described = described
        self.look_for_offsets = LostGroup(config, plans, offsets, records, deployed, log)
        self._group = config.application_id
        self._accepted = config.topology_change_accept
        self._plans = plans
        self._offsets = offsets
        self._deployed = deployed
        self._log = log

    def begin(
        self, admin: TopicAdmin, plan: TopicPlan, facts: Mapping[str, TopicFacts]
    ) -> frozenset[TopicPartition]:
        """Look at everything before a worker starts.

        Returns:
            The inputs without offsets of which it was said what follows.

        Raises:
            StateWithoutOffsetsError: the group's offsets are gone (see
            `headrace.streams.admin.start_check`). ChangelogLostError, TopologyChangedError: see
            `__call__`. MisconfiguredTopicError: see `headrace.streams.admin.start_check`.
        """
        if self._described is not None:
            internal = [topic.name for topic in plan.internal]
            require_own_topics(self._group, internal, admin.groups(), self._described)
        told = self.look_for_offsets(admin, plan, facts)
        if plan.create:
            self(admin, plan)
        return told

    def __call__(self, admin: TopicAdmin, plan: TopicPlan) -> None:
        """Look at what is to be created.

        Raises:
            ChangelogLostError: changelogs were deleted.
            TopologyChangedError: topics of another topology are there, and it is not known which.
        """
        new = [topic.name for topic in plan.create]
        texts = self._texts_of_what_was_read(admin)
        read = [sub for sub in self._plans if texts.keys() & set(sub.topics.all_sources)]
        if not read:
            return
        # Another worker that starts now may have created them, and committed since.
        new = [name for name in new if name not in admin.describe(new)]
        had = self._had(read, texts, new)
        if had:
            # Their rows were committed, so these stores are not new, and none begins empty.
            raise ChangelogLostError(had)
        if self._deployed is None and new and self._are_unclaimed(admin, plan, new):
            return
        lost = [name for sub in read for name in self._lost(sub) if name in new]
        if lost:
            code = None if self._deployed is not None else _code("lost", lost)
            if code is not None and is_accepted(self._accepted, code):
                self._log.warning("stores_begin_empty", changelogs=lost)
                return
            raise ChangelogLostError(lost, code=code)

    def require_same(self, admin: TopicAdmin, facts: Mapping[str, TopicFacts]) -> None:
        """Compare the changelogs that are there with those that rows were written to.

        Tasks do so for themselves when they begin.

        Raises:
            ChangelogLostError: some were deleted and made anew.
        """
        texts = self._texts_of_what_was_read(admin)
        lost: dict[str, str] = {}
        for sub in self._plans:
            ids = {t: facts[t].topic_id for t in sub.changelogs.values() if t in facts}
            for values in committed_numbers(_of(sub, texts)):
                others = lost_changelogs(values, ids)
                lost |= {t: store for store, t in sub.changelogs.items() if t in others}
        if lost:
            raise ChangelogLostError(lost, stores=lost.values())

    def _texts_of_what_was_read(self, admin: TopicAdmin) -> dict[str, list[str]]:
        """By input: what stands beside offsets that were read, and not only where to begin."""
        inputs = {sub.id: sub.topics.all_sources for sub in self._plans}
        facts = admin.describe(dict.fromkeys(name for some in inputs.values() for name in some))
        places = [TopicPartition(n, p) for n, f in facts.items() for p in range(f.partitions)]
        committed = self._offsets.committed_at(self._group, places)
        texts: dict[str, list[str]] = {}
        for place, found in committed.items():
            if found.metadata and not found.metadata.startswith(RESET_MARK):
                texts.setdefault(place.topic, []).append(found.metadata)
        return texts

    @staticmethod
    def _had(
        read: Sequence[SubPlan], texts: Mapping[str, Sequence[str]], new: Sequence[str]
    ) -> list[str]:
        """Those of the new topics that were there when offsets were committed."""
        found = []
        for sub in read:
            changelogs = [name for name in sub.changelogs.values() if name in new]
            found += known_changelogs(committed_numbers(_of(sub, texts)), changelogs)
        return found

    def _lost(self, sub: SubPlan) -> list[str]:
        """The changelogs of a sub-topology that must have been there."""
        if self._deployed is None:
            return list(sub.changelogs.values())
        had = {s.name for s in self._deployed.stores if s.logged and not s.source}
        return [topic for store, topic in sub.changelogs.items() if store in had]

    def _are_unclaimed(self, admin: TopicAdmin, plan: TopicPlan, new: Sequence[str]) -> bool:
        """Whether there are topics that the topology does not claim, and that is accepted."""
        unclaimed = self._unclaimed(admin)
        if not unclaimed:
            return False
        code = _code("unclaimed", [*new, "", *unclaimed])
        if is_accepted(self._accepted, code):
            self._log.warning("topics_unclaimed", new=list(new), unclaimed=list(unclaimed))
            return True
        claimed = [topic.name for topic in plan.internal if topic.name not in new]
        what = (
            "the group has read its inputs, no description of what is deployed is known, and "
            "topics of the application are there that this topology does not use, while it would "
            "create others: a store or a step that is called otherwise begins empty. Give it the "
            "name that is deployed, reset the application, or accept it if the unclaimed topics "
            f"are of an older version, or of another application whose id begins with {self._group}"
        )
        lists = {"claimed": claimed, "new": new, "unclaimed": unclaimed}
        told = [f"{kind}: {', '.join(names) or 'none'}" for kind, names in lists.items()]
        raise TopologyChangedError([what, *told], code)

    def _unclaimed(self, admin: TopicAdmin) -> list[str]:
        """Internal topics of the application, by their names, without those of longer ids."""
        found = ApplicationTopics.of(self._plans).leftovers(self._group, admin.names())
        longer = [g for g in admin.groups() if g.startswith(f"{self._group}-")]
        return [name for name in found if not any(is_topic_of(g, name) for g in longer)]


def _of(sub: SubPlan, texts: Mapping[str, Sequence[str]]) -> list[str]:
    """The texts beside offsets of a sub-topology's inputs."""
    return [text for topic in sub.topics.all_sources for text in texts.get(topic, ())]


def is_topic_of(application_id: str, topic: str) -> bool:
    """Whether an internal topic can be one of an application.

    >>> is_topic_of("orders-eu", "orders-eu-counts-changelog")
    True
    >>> is_topic_of("orders-counts", "orders-counts-changelog")
    False
    """
    prefix = f"{application_id}-"
    rest = topic.removeprefix(prefix)
    return topic.startswith(prefix) and "-" in rest


def _code(kind: str, names: Iterable[str]) -> str:
    """A short name of what is to be accepted, for a setting that accepts this and nothing else."""
    return hashlib.sha256("\n".join((kind, *names)).encode()).hexdigest()[:8]
