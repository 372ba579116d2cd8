"""Planning of a backfill: reads offsets and topics of the cluster once, and fixes the ends.

A plan has the ids of its topics, and a digest of its topology. If a topic was deleted and created
again, the offsets of a plan are meaningless, and so are the markers of written units, because their
rows are gone. Units of two topologies do not form a consistent state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.kafka.protocols import (
    GroupAdminClient,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.flow import reached
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import SubTopologyTopics, plan_internal_topics, topic_names
from headrace.streams.plan.topics import describe_as, describe_twice, prepare_topics

Until = str | Mapping[TopicPartition, int] | datetime
"""End of the history: "latest" for the last stable offsets, given offsets, or a time (exclusive); a
time may be text, in UTC without a zone."""


def parsed_time(name: str, given: Any) -> Any:
    """Return a time that is given as text as a datetime, and anything else unchanged.

    >>> parsed_time("until", "2026-01-31T09:00:00")
    datetime.datetime(2026, 1, 31, 9, 0, tzinfo=datetime.timezone.utc)
    >>> parsed_time("until", "latest")
    'latest'
    """
    if not isinstance(given, str) or (name, given) == ("until", "latest"):
        return given
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        return given
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class InputEnds:
    """Start and end offsets of inputs, by the isolation level of the application.

    Args:
        committed: whether the application reads only committed records.
    """

    def __init__(self, admin: GroupAdminClient, *, committed: bool) -> None:
        self._admin = admin
        self._committed = committed
        self.start_offsets = admin.start_offsets
        self.stable_offsets = admin.stable_offsets if committed else admin.end_offsets

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        return self._admin.offsets_at(partitions, timestamp_ms, committed=self._committed)


def make_plan(
    application: CompiledApplication,
    admin: GroupAdminClient,
    *,
    id: str,  # noqa: A002 - as the public function calls it
    now_ms: int,
    until: Until,
    create: bool,
    cuts: Mapping[TopicPartition, int] | None = None,
) -> BackfillPlan:
    """Plan the ranges to read, and `create` internal topics; `cuts` are the ends of archives."""
    partitions, topic_ids = _topics(application, admin, create=create)
    plans = list(application.plans.values())
    external = [
        TopicPartition(topic, p)
        for topic in dict.fromkeys(t for plan in plans for t in plan.topics.sources)
        for p in range(partitions[topic])
    ]
    late = {t for plan in plans for t, r in plan.offset_resets.items() if r == "latest"}
    found = InputEnds(admin, committed=application.config.reads_committed)
    starts, ends = ranges(found, external, until, cuts or {}, late)
    global_topics = {plan.topic for plan in application.global_plans}
    tables = [TopicPartition(t, p) for t in global_topics for p in range(partitions[t])]
    return BackfillPlan(
        application.config.application_id,
        id,
        now_ms,
        stages_of(plans),
        partitions,
        starts,
        ends,
        *ranges(admin, tables, "latest", {}, ()),
        tuple(sorted({tp.topic for tp in cuts or {}})),
        topic_ids=topic_ids,
        topology=topology_digest(application),
    )


def _topics(
    application: CompiledApplication, admin: GroupAdminClient, *, create: bool
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the partition counts of all topics, and the ids of all topics except sinks."""
    config = application.config
    plans = application.plans.values()
    needed: list[SubTopologyTopics] = [
        *(plan.topics for plan in plans),
        *(plan.topics for plan in application.global_plans),
    ]
    counts: dict[str, int] = {}
    sinks = {sink for plan in plans for sink in plan.sinks}
    if config.handlers.dead_letter_topic is not None:
        sinks.add(config.handlers.dead_letter_topic)
    found_sinks = describe_as(admin, sinks, written=set(sinks))
    counts.update({name: found.partitions for name, found in found_sinks.items()})
    missing = sorted(sinks - found_sinks.keys())
    if missing:
        raise CannotBackfillError(
            f"sink topics do not exist ({', '.join(missing)}). Create them with a retention that "
            "keeps the history's records"
        )
    if create:
        descriptions = prepare_topics(
            admin,
            needed,
            replication_factor=config.replication_factor,
            topic_configs=config.topic_configs,
            timeout_s=config.task_timeout_ms / 1000,
        )
        counts.update({name: found.partitions for name, found in descriptions.items()})
        return counts, _ids_without(sinks, descriptions)
    names = topic_names(needed)
    external = {name for topics in needed for name in topics.sources}
    existing = describe_twice(admin, names, external, written=sinks)
    planned = plan_internal_topics(needed, existing, topic_configs=config.topic_configs)
    counts.update({name: found.partitions for name, found in existing.items()})
    counts.update({topic.name: topic.partitions for topic in planned.internal})
    return counts, _ids_without(sinks, existing)


def _ids_without(
    sinks: AbstractSet[str], descriptions: Mapping[str, TopicDescription]
) -> dict[str, str]:
    return {name: found.topic_id for name, found in descriptions.items() if name not in sinks}


def ranges(
    admin: GroupAdminClient | InputEnds,
    tps: Sequence[TopicPartition],
    until: Until,
    cuts: Mapping[TopicPartition, int],
    late: Collection[str],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset to read of each partition, and the offset to stop before.

    Args:
        cuts: first offset, for partitions whose earlier records are in an archive.
        late: topics with offset reset "latest", whose present records are not read.
    """
    starts, stable = admin.start_offsets(tps), admin.stable_offsets(tps)
    ends = dict(stable)
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise CannotBackfillError("until= has no time zone. Add one, such as timezone.utc")
        found = admin.offsets_at(tps, int(until.timestamp() * 1000))
        ends = {p: stable[p] if at is None else min(at, stable[p]) for p, at in found.items()}
    elif isinstance(until, Mapping):
        ends = _requested(until, starts, stable)
    elif until != "latest":
        raise CannotBackfillError(
            f"until= must be 'latest', a time or offsets, not {until!r}. Give a time such as "
            "2026-01-31T09:00:00Z, or offsets by partition"
        )
    for tp in tps:
        cut = cuts.get(tp)
        if cut is not None:
            _check_cut(tp, cut, starts[tp], stable[tp])
            starts[tp] = cut
        elif tp.topic in late:
            starts[tp] = ends[tp]
    # Nothing is read after the requested end, neither from Kafka nor from archives.
    starts = {tp: min(start, ends[tp]) for tp, start in starts.items()}
    return starts, ends


def _requested(
    until: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    requested = {TopicPartition(topic, partition): end for (topic, partition), end in until.items()}
    unknown = sorted(requested.keys() - stable.keys())
    if unknown:
        raise CannotBackfillError(
            f"until= has partitions that are not inputs ({', '.join(map(str, unknown))}). Remove "
            "them"
        )
    missing = sorted(stable.keys() - requested.keys())
    if missing:
        raise CannotBackfillError(
            f"until= lacks input partitions ({', '.join(map(str, missing))}). Give an offset for "
            "each of them"
        )
    for tp, end in requested.items():
        if end > stable[tp]:
            raise CannotBackfillError(
                f"until= is after the last stable offset, {stable[tp]} ({tp}, offset {end}). Give "
                "an earlier offset, or wait until open transactions have ended"
            )
        if end < starts[tp]:
            raise CannotBackfillError(
                f"until= is before the first offset that is not deleted, {starts[tp]} ({tp}, "
                f"offset {end}). Give a later offset, so that the live application can continue"
            )
    return requested


def _check_cut(tp: TopicPartition, cut: int, start: int, stable: int) -> None:
    if cut < start:
        raise CannotBackfillError(
            f"records between the archive and Kafka are lost ({tp}, offsets {cut} to {start}). "
            "Update the archive"
        )
    if cut > stable:
        raise CannotBackfillError(
            f"the archive ends after the last stable offset, {stable} ({tp}, offset {cut}). Check "
            "whether it is of another topic, or of one that was re-created"
        )


def stages_of(plans: Sequence[SubPlan]) -> tuple[tuple[int, ...], ...]:
    """Group sub-topologies into stages after their writers; a cycle is a single stage."""
    writers = {
        plan.id: {
            other.id
            for other in plans
            for topic in plan.topics.repartition_sources
            if topic.name in other.topics.repartition_sinks
        }
        for plan in plans
    }
    above = {sub: reached(writers, sub) for sub in writers}
    stages: list[tuple[int, ...]] = []
    done: set[int] = set()
    while len(done) < len(writers):
        for sub in sorted(writers.keys() - done):
            circle = {other for other in above[sub] if sub in above[other]} | {sub}
            if above[sub] - circle <= done:
                stages.append(tuple(sorted(circle)))
                done |= circle
                break
    return tuple(stages)


# -- identity --------------------------------------------------------------------------------------


def topology_digest(application: CompiledApplication) -> str:
    """Return a digest of the tasks, stores and topics of a topology, but not of its functions."""
    plans = sorted(application.plans.values(), key=lambda plan: plan.id)
    tasks = [(plan.id, plan.topics.all_sources, sorted(plan.sinks)) for plan in plans]
    described = f"{Deployment.of(plans, application.config)!r}\n{tasks!r}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_of(application: CompiledApplication, plan: BackfillPlan) -> bool:
    """Return whether a plan was made for this topology; True for plans without a digest."""
    return plan.topology in ("", topology_digest(application))


def refuse_other_topology(application: CompiledApplication, plan: BackfillPlan) -> None:
    if not is_of(application, plan):
        raise CannotBackfillError(
            f"backfill {plan.id} of {plan.application_id} was started with another topology (other "
            "sub-topologies, stores or topics) or by another version of Headrace. Continue it with "
            f"that program, or drop it with {_drop(plan)}"
        )


def refuse_other_topics(plan: BackfillPlan, descriptions: Mapping[str, TopicDescription]) -> None:
    """Raise if a topic of a plan was deleted or created again."""
    problems = []
    for name, topic_id in plan.topic_ids.items():
        if name not in descriptions:
            problems.append(f"{name} does not exist")
        elif descriptions[name].topic_id != topic_id:
            problems.append(f"{name} was deleted and created again")
    if problems:
        raise CannotBackfillError(
            f"topics have changed since backfill {plan.id} of {plan.application_id} was planned "
            f"({'; '.join(problems)}). Drop it with {_drop(plan)}, and start a new one"
        )


def _drop(plan: BackfillPlan) -> str:
    return f"headrace backfill ... --drop --id {plan.id}"
