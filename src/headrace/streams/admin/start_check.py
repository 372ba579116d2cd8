"""Checks before a start: lost offsets, foreign internal topics, buffers of Kafka Streams, and lost
changelogs.

Lost offsets and foreign topics are checked first. Then, before internal topics are created: if the
group has read the inputs of a changelog that does not exist, the changelog was either deleted, or
it belongs to a renamed store. The deployed topology distinguishes the two, and so do the changelog
ids in the offset metadata. If neither is known, only internal topics that the topology does not use
indicate a renamed store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from headrace.streams.admin.reset import ApplicationTopics
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import (
    FatalClientError,
    MisconfiguredTopicError,
    OffsetLostError,
    TopologyChangedError,
)
from headrace.streams.kafka.offset_texts import format_partitions, format_tasks, topic_options
from headrace.streams.kafka.protocols import (
    AdminClient,
    Clock,
    CommittedOffset,
    Consumer,
    Log,
    OffsetClient,
    Offsets,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.deployed import topology_group
from headrace.streams.plan.deployment import Deployment, is_accepted
from headrace.streams.plan.identity import (
    ChangelogLostError,
    committed_numbers,
    known_changelogs,
    lost_changelogs,
)
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import (
    CHANGELOG_MARK,
    RESET_MARK,
    OffsetMetadata,
    is_of_kafka_streams,
)
from headrace.streams.plan.topic_plan import TopicPlan
from headrace.streams.plan.topics import partitions_of
from headrace.streams.tasks.lost_offsets import (
    Counted,
    ReadBefore,
    StateWithoutOffsetsError,
    advice_at_least_once,
    advice_exactly_once,
    effects_of,
    has_run,
    lost_inputs,
    read_before,
)
from headrace.streams.tasks.tasks import ClusterMetadata, begins_earliest
from headrace.topology.operators.windows.buffered import BufferedSerde, is_buffered

# Detection of committed records in partitions.


_POLL_S = 0.1
_RECORDS = 500
_PAUSE_S = 1.0
_TRIES = 5
"""Attempts to read partitions whose records are deleted meanwhile."""


class CommittedRecords:
    """Reader of partitions up to their first committed record.

    The end of a partition proves nothing, because aborted transactions move it. Records after the
    last stable offset are not committed, so nothing is waited for.

    Args:
        make_consumer: creates a consumer of committed records without a group; called only if
            something must be read.
    """

    def __init__(
        self, make_consumer: Callable[[], Consumer], *, clock: Clock, timeout_s: float
    ) -> None:
        self._make_consumer = make_consumer
        self._clock = clock
        self._timeout_s = timeout_s

    def pause(self) -> None:
        """Wait briefly, for offsets that are committed right after records."""
        self._clock.sleep(_PAUSE_S)

    def among(self, admin: AdminClient, tps: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that contain a committed record now."""
        return set(self._last_rows(admin, tps, first_only=True))

    def live_rows(
        self, admin: AdminClient, tps: Iterable[TopicPartition], is_counted: Callable[[bytes], bool]
    ) -> dict[TopicPartition, int]:
        """Return the number of rows with certain values in partitions of changelogs."""
        found = self._last_rows(admin, tps, first_only=False)
        rows = {tp: sum(map(is_counted, values)) for tp, values in found.items()}
        return {tp: count for tp, count in rows.items() if count}

    def _last_rows(
        self, admin: AdminClient, tps: Iterable[TopicPartition], *, first_only: bool
    ) -> dict[TopicPartition, list[bytes]]:
        """Return the last values of each key, without tombstones; or only a part of them."""
        left = sorted(set(tps))
        for _ in range(_TRIES):
            ends, starts = admin.stable_offsets(left), admin.start_offsets(left)
            left = [tp for tp in left if starts[tp] < ends[tp]]
            if not left:
                return {}
            try:
                found = self._read({tp: starts[tp] for tp in left}, ends, first_only=first_only)
            except OffsetLostError:
                continue  # records were deleted meanwhile
            return {tp: [v for v in rows.values() if v is not None] for tp, rows in found.items()}
        raise FatalClientError(
            f"records of {format_partitions(left)} were deleted repeatedly while the start check "
            "read them; find out which program deletes them, and start again"
        )

    def _read(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        *,
        first_only: bool,
    ) -> dict[TopicPartition, dict[bytes | None, bytes | None]]:
        rows: dict[TopicPartition, dict[bytes | None, bytes | None]] = {}
        left = dict(starts)
        give_up_at_s = self._clock.monotonic_s() + self._timeout_s
        consumer = self._make_consumer()
        try:
            consumer.add(left)
            while left:
                batches = consumer.poll(_RECORDS, _POLL_S)
                positions = consumer.positions(list(left))
                for tp in batches.keys() & left.keys():
                    rows.setdefault(tp, {}).update((m.key(), m.value()) for m in batches[tp])
                    give_up_at_s = self._clock.monotonic_s() + self._timeout_s
                done = rows if first_only else ()
                over = [p for p in left if p in done or positions.get(p, -1) >= ends[p]]
                consumer.remove(over)
                for tp in over:
                    del left[tp]
                if left and self._clock.monotonic_s() > give_up_at_s:
                    raise FatalClientError(
                        f"cannot read {format_partitions(left)} for {self._timeout_s:.0f} s; check "
                        "that the brokers at bootstrap.servers are running, or raise "
                        "task.timeout.ms"
                    )
        finally:
            consumer.close(leave=False)
        return rows


# Detection of lost offsets of the whole application, before a worker joins its group.
#
# A task knows only its own offsets, and a task without offsets looks like a new task. If all
# offsets are lost, stateful tasks detect it from their rows, but tasks upstream of them do not:
# they would write a repartition topic a second time. So all tasks are checked together, before any
# of them writes.
#
# These prove that a task has committed, because only its commits create them:
#
# 1. metadata of the offset of another of its inputs,
# 2. a committed record in a changelog of the task,
# 3. a committed record in a repartition topic that its sub-topology writes, or an offset after such
#    a record, if no offset of the sub-topology has metadata.
#
# Ends and starts of topics, and offsets after transaction markers prove nothing: aborted first
# transactions move all of them. The proof was committed together with offsets of the task, so these
# are read again after open transactions have completed: if another worker's first commit was in
# progress, they exist now, and if not, they are lost.
#
# At-least-once processing writes before it commits: there only offsets count in 3, and lost offsets
# are logged instead of raised.


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """Task with its inputs, including topics that are not created yet."""

    plan: SubPlan
    partition: int
    inputs: tuple[TopicPartition, ...]

    def committed(self, offsets: Offsets) -> dict[TopicPartition, CommittedOffset | None]:
        return {tp: offsets.get(tp) for tp in self.inputs}

    @property
    def changelogs(self) -> list[TopicPartition]:
        return [TopicPartition(topic, self.partition) for topic in self.plan.changelogs.values()]


Lost = Mapping[_Task, Sequence[TopicPartition]]
"""By task: its inputs whose offsets are lost, or may be."""


@dataclass(frozen=True, slots=True)
class _ProvenTasks:
    """Tasks proven to have committed, and sub-topologies in which an unknown task has."""

    tasks: frozenset[_Task]
    subs: frozenset[int]

    def of(self, tasks: Iterable[_Task], offsets: Offsets) -> list[_Task]:
        silent = {t.plan.id for t in tasks if not _has_progress(t.plan, offsets)}
        return [t for t in tasks if t in self.tasks or t.plan.id in silent & self.subs]


class LostGroup:
    """Check for lost offsets of the whole application before a worker joins its group.

    Args:
        deployed: the version that started last, if it is known.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        offsets: OffsetClient,
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
        self, admin: AdminClient, plan: TopicPlan, topics: Mapping[str, TopicDescription]
    ) -> frozenset[TopicPartition]:
        """Return inputs without offsets that were logged; raise under exactly-once."""
        if not any(self._counted.values()):
            return frozenset()
        counts = {topic.name: topic.partitions for topic in plan.internal}
        counts |= {name: offsets.partitions for name, offsets in topics.items()}
        tasks = list(_tasks(self._plans, counts))
        there = {tp for task in tasks for tp in task.inputs if tp.topic in topics}
        offsets = self._offsets.committed_at(self._group, sorted(there), decided=False)
        if len(offsets) == len(there) or _is_marked(offsets):
            return frozenset()
        lost = self._lost(tasks, offsets)
        shown = self._shown(admin, lost, offsets, topics)
        if not shown.of(lost, offsets):
            return frozenset()
        wanted = {tp for tps in lost.values() for tp in tps} & there
        if not self._config.exactly_once:
            self._records.pause()  # rows are written shortly before offsets
        offsets |= self._offsets.committed_at(self._group, sorted(wanted), decided=True)
        lost = self._lost(shown.of(lost, offsets), offsets)
        if lost and not any(_has_progress(sub, offsets) for sub in self._plans):
            # All offsets are lost: tasks without proof have lost theirs, too.
            lost = {t: p for t, p in self._lost(tasks, offsets).items() if self._of(t).has_state}
        tps = {tp for some in lost.values() for tp in some} & there
        if tps:
            self._handle_lost(admin, lost, tps, topics)
        return frozenset(tps)

    def _lost(self, tasks: Iterable[_Task], offsets: Offsets) -> Lost:
        lost = {}
        for task in tasks:
            inputs = lost_inputs(task.committed(offsets), self._of(task))
            if inputs:
                lost[task] = inputs
        return lost

    def _of(self, task: _Task) -> ReadBefore:
        return self._before.get(task.plan.id, ReadBefore())

    # -- proof that tasks have committed -------------------------------------------------------

    def _shown(
        self,
        admin: AdminClient,
        lost: Lost,
        offsets: Offsets,
        topics: Mapping[str, TopicDescription],
    ) -> _ProvenTasks:
        tasks = [task for task in lost if self._counted[task.plan.id]]
        shown = {t for t in tasks if has_run(t.committed(offsets)) and self._of(t).has_state}
        written = {
            task.plan.id: partitions_of(task.plan.topics.repartition_sinks, topics)
            for task in tasks
            if not _has_progress(task.plan, offsets)
        }
        subs = {sub for sub, to in written.items() if any(map(_has_read, _at(to, offsets)))}
        changelogs = {
            task: {tp for tp in task.changelogs if _is_there(tp, topics)}
            for task in tasks
            if task not in shown and task.plan.id not in subs
        }
        wanted = {tp for tps in changelogs.values() for tp in tps}
        if self._config.exactly_once:
            wanted |= {tp for sub, to in written.items() if sub not in subs for tp in to}
        held = self._records.among(admin, wanted) if wanted else set()
        shown |= {task for task, tps in changelogs.items() if held & tps}
        subs |= {sub for sub, to in written.items() if held.intersection(to)}
        return _ProvenTasks(frozenset(shown), frozenset(subs))

    # -- reaction ------------------------------------------------------------------------------

    def _handle_lost(
        self,
        admin: AdminClient,
        lost: Lost,
        tps: set[TopicPartition],
        topics: Mapping[str, TopicDescription],
    ) -> None:
        by_sub: dict[int, list[int]] = {}
        for task in lost:
            by_sub.setdefault(task.plan.id, []).append(task.partition)
        where = format_partitions(tps)
        lacks = f"the group {self._group} has no committed offsets for {where}"
        tasks = {sub: format_tasks(sub, some) for sub, some in sorted(by_sub.items())}
        counts = {name: found.partitions for name, found in topics.items()}
        if self._config.exactly_once:
            effects = "; ".join(
                f"{self._counted[sub]} ({named})"
                for sub, named in tasks.items()
                if self._counted[sub]
            )
            out = advice_exactly_once(topic_options(tps, counts))
            raise StateWithoutOffsetsError(
                f"the application {self._group} {effects}, but {lacks}: {out}"
            )
        counted = [self._counted[sub] for sub in tasks]
        self._log.error(
            "records_counted_twice",
            tasks=list(tasks.values()),
            stores=[store for one in counted for store in one.stores],
            writes_to=[topic for one in counted for topic in one.written],
            partitions=self._effects(admin, tps, topics),
            reason=f"{lacks} any more, {advice_at_least_once(topic_options(tps, counts))}",
        )

    def _effects(
        self, admin: AdminClient, tps: set[TopicPartition], topics: Mapping[str, TopicDescription]
    ) -> Mapping[str, str]:
        resets = {topic: r for plan in self._plans for topic, r in plan.offset_resets.items()}
        cluster = ClusterMetadata(admin, dict(topics), begins_earliest(self._config), resets)
        some = sorted(tps)
        start = {p: CommittedOffset(first) for p, first in cluster.first_offsets(some).items()}
        return effects_of(some, start, cluster.changelogs(some))


def _tasks(plans: Sequence[SubPlan], counts: Mapping[str, int]) -> Iterator[_Task]:
    for plan in plans:
        for partition in range(max(counts[topic] for topic in plan.topics.all_sources)):
            yield _Task(plan, partition, tuple(plan.inputs(partition, counts)))


def _is_there(tp: TopicPartition, topics: Mapping[str, TopicDescription]) -> bool:
    return tp.topic in topics and tp.partition < topics[tp.topic].partitions


def _is_marked(offsets: Offsets) -> bool:
    """Return whether a reset or a changelog restore is unfinished; each task reports it itself."""
    return any(c.metadata.startswith((RESET_MARK, CHANGELOG_MARK)) for c in offsets.values())


def _has_progress(sub: SubPlan, offsets: Offsets) -> bool:
    topics = set(sub.topics.all_sources)
    return has_run({tp: c for tp, c in offsets.items() if tp.topic in topics})


def _at(tps: Iterable[TopicPartition], offsets: Offsets) -> Iterator[CommittedOffset]:
    return (offsets[tp] for tp in tps if tp in offsets)


def _has_read(offset: CommittedOffset) -> bool:
    """Return whether it is past a record, as is any offset set manually, without metadata."""
    progress = OffsetMetadata.parse(offset.metadata)
    return offset.offset > 0 and (progress is None or progress.partition_time >= 0)


# Detection of another application that owns an internal topic of this application.
#
# The name of an internal topic is `<application.id>-<name>`, so `orders` with a store `eu-counts`
# and `orders-eu` with a store `counts` both own `orders-eu-counts-changelog`. Both would write
# their rows there. A topic does not contain its owner's name, but a running application keeps a
# description of its stores and topics on the cluster (see `headrace.streams.plan.deployed`).


def require_own_topics(
    application_id: str, topics: Iterable[str], groups: Set[str], described: OffsetClient
) -> None:
    """Raise if another application's description has an internal topic of this application."""
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
    """Return the ids of applications that may own an internal topic, according to its name.

    >>> possible_owners("orders-eu-counts-changelog")
    ['orders', 'orders-eu', 'orders-eu-counts']
    """
    parts = topic.split("-")
    return ["-".join(parts[:count]) for count in range(1, len(parts)) if any(parts[:count])]


def _internal_topics(application_id: str, described: OffsetClient) -> dict[str, str]:
    described_offsets = described.committed(topology_group(application_id), decided=False).values()
    last = max(described_offsets, key=lambda committed: committed.offset, default=None)
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


def has_stored_nothing(
    group: str,
    deployed: Deployment,
    admin: AdminClient,
    offsets: OffsetClient,
    records: CommittedRecords,
    log: Log,
    *,
    wait_s: float = 0,
) -> bool:
    """Return whether a deployed topology has read no input and committed no internal record.

    The first commit has the offsets at which the inputs begin. The workers must have left the
    group, because they may commit; `wait_s` is the maximum wait.
    """
    internal = {f"{group}-{topic.name}" for topic in deployed.topics}
    internal |= {f"{group}-{store.name}-changelog" for store in deployed.stores}
    names = internal | deployed.reads
    tps = partitions_of(sorted(names), admin.describe(names))

    def is_empty() -> bool:
        committed = offsets.committed_at(group, tps, decided=True)
        starts = admin.start_offsets(tps)
        if not deployed.reads or any(one.offset > starts[tp] for tp, one in committed.items()):
            return False  # without `reads`, an older release has described it
        return not records.among(admin, [tp for tp in tps if tp.topic in internal])

    return is_empty() and _await_leaving(group, admin, records, log, wait_s) and is_empty()


def _await_leaving(
    group: str, admin: AdminClient, records: CommittedRecords, log: Log, wait_s: float
) -> bool:
    """Return whether the group has no members, after their sessions have ended."""
    for passed in range(int(wait_s / _PAUSE_S) + 1):
        members = admin.group_state(group).members
        if not members:
            return True
        if passed == 0 and wait_s:
            log.warning(
                "start_waits_for_other_version",
                members=sorted(member.id for member in members),
                reasons=["the deployed topology has stored nothing, and may still do so"],
                at_most_s=round(wait_s),
                advice="if its workers run, stop all of them",
            )
        if wait_s:
            records.pause()
    return False


class StartCheck:
    """Checks of the cluster and of the deployed versions before a worker joins its group.

    Args:
        deployed: the version that started last, if it is known.
        described: reads the descriptions of other applications; None skips that check.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        offsets: OffsetClient,
        records: CommittedRecords,
        deployed: Deployment | None,
        log: Log,
        *,
        described: OffsetClient | None = None,
    ) -> None:
        self._described = described
        self.find_lost_group = LostGroup(config, plans, offsets, records, deployed, log)
        self._group = config.application_id
        self._accepted = config.topology_change_accept
        self._plans = plans
        self._offsets = offsets
        self._records = records
        self._deployed = deployed
        self._log = log

    def begin(
        self, admin: AdminClient, plan: TopicPlan, topics: Mapping[str, TopicDescription]
    ) -> frozenset[TopicPartition]:
        """Run all checks; return the inputs without offsets that were logged."""
        if self._described is not None:
            internal = [topic.name for topic in plan.internal]
            require_own_topics(self._group, internal, admin.groups(), self._described)
        self._require_readable_buffers(admin, topics)
        reported = self.find_lost_group(admin, plan, topics)
        if plan.create:
            self(admin, plan)
        return reported

    def __call__(self, admin: AdminClient, plan: TopicPlan) -> None:
        """Raise if topics to create were deleted, or if an unknown topology's topics exist."""
        new = [topic.name for topic in plan.create]
        texts = self._committed_texts(admin)
        read = [sub for sub in self._plans if texts.keys() & set(sub.topics.all_sources)]
        if not read:
            return
        # Another worker that starts now may have created them, and committed since.
        new = [name for name in new if name not in admin.describe(new)]
        had = self._existed_before(read, texts, new)
        if had:
            # Their rows were committed, so these stores are not new and must not start empty.
            raise ChangelogLostError(had)
        if self._deployed is None and new and self._are_unclaimed(admin, plan, new):
            return
        lost = [name for sub in read for name in self._lost(sub) if name in new]
        if lost:
            code = None if self._deployed is not None else _code("lost", lost)
            if code is not None and is_accepted(self._accepted, code):
                self._log.warning("stores_started_empty", changelogs=lost)
                return
            raise ChangelogLostError(lost, code=code)

    def _require_readable_buffers(
        self, admin: AdminClient, topics: Mapping[str, TopicDescription]
    ) -> None:
        """Raise if Kafka Streams has left delayed results or waiting records in changelogs."""
        buffers = {
            plan.changelogs[store.name]: store.name
            for plan in self._plans
            for store in plan.program.sub_topology.stores
            if isinstance(store.value, BufferedSerde) and store.name in plan.changelogs
        }
        tps = partitions_of([topic for topic in buffers if topic in topics], topics)
        if not tps or not self.inputs_of_kafka_streams(admin):
            return
        rows = self._records.live_rows(admin, tps, lambda value: not is_buffered(value))
        if rows:
            names = ", ".join(sorted({buffers[tp.topic] for tp in rows}))
            raise MisconfiguredTopicError(
                f"the changelogs of {names} have {sum(rows.values())} rows of Kafka Streams, "
                f"which delay results in another format ({format_partitions(rows)}). Run the Java "
                "application until it has emitted them; or give suppress(), or the join with "
                "grace=, another name=, which loses them, and accept that by the code that the "
                "next start prints"
            )

    def inputs_of_kafka_streams(self, admin: AdminClient) -> int:
        """Return the number of input partitions whose offset Kafka Streams has committed."""
        texts = self._committed_texts(admin, decided=False).values()
        return sum(is_of_kafka_streams(text) for some in texts for text in some)

    def require_same(self, admin: AdminClient, topics: Mapping[str, TopicDescription]) -> None:
        """Raise if changelogs were re-created; tasks also check this when they start."""
        texts = self._committed_texts(admin)
        lost: dict[str, str] = {}
        for sub in self._plans:
            ids = {t: topics[t].topic_id for t in sub.changelogs.values() if t in topics}
            for values in committed_numbers(_of(sub, texts)):
                others = lost_changelogs(values, ids)
                lost |= {t: store for store, t in sub.changelogs.items() if t in others}
        if lost:
            raise ChangelogLostError(lost, stores=lost.values())

    def _committed_texts(self, admin: AdminClient, *, decided: bool = True) -> dict[str, list[str]]:
        inputs = {sub.id: sub.topics.all_sources for sub in self._plans}
        topics = admin.describe(dict.fromkeys(name for some in inputs.values() for name in some))
        tps = partitions_of(topics, topics)
        committed = self._offsets.committed_at(self._group, tps, decided=decided)
        texts: dict[str, list[str]] = {}
        for tp, offset in committed.items():
            if offset.metadata and not offset.metadata.startswith(RESET_MARK):
                texts.setdefault(tp.topic, []).append(offset.metadata)
        return texts

    @staticmethod
    def _existed_before(
        read: Sequence[SubPlan], texts: Mapping[str, Sequence[str]], new: Sequence[str]
    ) -> list[str]:
        """Return the new topics that already existed when offsets were committed."""
        existing = []
        for sub in read:
            changelogs = [name for name in sub.changelogs.values() if name in new]
            existing += known_changelogs(committed_numbers(_of(sub, texts)), changelogs)
        return existing

    def _lost(self, sub: SubPlan) -> list[str]:
        """Return the changelogs of a sub-topology that must have existed."""
        if self._deployed is None:
            return list(sub.changelogs.values())
        had = {s.name for s in self._deployed.stores if s.logged and not s.source}
        return [topic for store, topic in sub.changelogs.items() if store in had]

    def _are_unclaimed(self, admin: AdminClient, plan: TopicPlan, new: Sequence[str]) -> bool:
        """Return whether unclaimed internal topics exist and are accepted; else raise."""
        unclaimed = self._unclaimed(admin)
        if not unclaimed:
            return False
        code = _code("unclaimed", [*new, "", *unclaimed])
        if is_accepted(self._accepted, code):
            self._log.warning("topics_unclaimed", new=list(new), unclaimed=list(unclaimed))
            return True
        claimed = [topic.name for topic in plan.internal if topic.name not in new]
        what = (
            "the deployed topology is unknown, the group has committed offsets, and internal "
            "topics exist that this topology does not use, while it would create new ones: a "
            "renamed store or operator would start empty. Give it the deployed name, reset the "
            "application, or accept the change if the unclaimed topics belong to an older "
            f"version, or to another application whose id begins with {self._group}"
        )
        lists = {"claimed": claimed, "new": new, "unclaimed": unclaimed}
        lines = [f"{kind}: {', '.join(names) or 'none'}" for kind, names in lists.items()]
        raise TopologyChangedError([what, *lines], code)

    def _unclaimed(self, admin: AdminClient) -> list[str]:
        """Return unclaimed internal topics, without topics of applications with a longer id."""
        leftovers = ApplicationTopics.of(self._plans).leftovers(self._group, admin.names())
        longer = [g for g in admin.groups() if g.startswith(f"{self._group}-")]
        return [name for name in leftovers if not any(is_topic_of(g, name) for g in longer)]


def _of(sub: SubPlan, texts: Mapping[str, Sequence[str]]) -> list[str]:
    return [text for topic in sub.topics.all_sources for text in texts.get(topic, ())]


def is_topic_of(application_id: str, topic: str) -> bool:
    """Return whether an internal topic may belong to an application.

    >>> is_topic_of("orders-eu", "orders-eu-counts-changelog")
    True
    >>> is_topic_of("orders-counts", "orders-counts-changelog")
    False
    """
    prefix = f"{application_id}-"
    rest = topic.removeprefix(prefix)
    return topic.startswith(prefix) and "-" in rest


def _code(kind: str, names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join((kind, *names)).encode()).hexdigest()[:8]
