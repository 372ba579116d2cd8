"""Wires what a worker does now and then beside its records: group, topics, purging."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.streams.commit.membership import Membership
from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import SubTopologyTopics
from headrace.streams.plan.topics import TopicAdmin, recheck_global_topics, recheck_topics
from headrace.streams.seams.background import Background
from headrace.streams.seams.clients import Clock, Consumer, Log, TopicPartition
from headrace.streams.seams.never_back import NeverBack
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.upkeep.purge import Purger
from headrace.streams.upkeep.retention import RetentionGuard, window_topics
from headrace.streams.upkeep.topic_watch import TopicWatch


def make_purger(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    admin: TopicAdmin,
    *,
    background: Background,
    clock: Clock,
    log: Log,
) -> Purger:
    """Make what deletes processed records of the application's repartition topics."""
    return Purger(
        admin,
        frozenset(t.name for plan in plans for t in plan.topics.repartition_sources),
        config.repartition_purge_interval_ms / 1000,
        background=background,
        clock=clock,
        log=log,
    )


def make_retention(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    admin: TopicAdmin,
    consumer: Consumer,
    *,
    topics: Mapping[str, TopicFacts],
    partitions: Mapping[str, int],
    background: Background,
    clock: Clock,
    log: Log,
) -> RetentionGuard:
    """Make what keeps windows in their changelogs while old input is processed."""
    windows = window_topics(plans)
    by_id = {plan.id: plan for plan in plans}

    def inputs(sub_topology: int) -> list[TopicPartition]:
        sources = by_id[sub_topology].topics.all_sources
        return [TopicPartition(t, p) for t in sources for p in range(partitions[t])]

    return RetentionGuard(
        admin,
        windows,
        {t for t in windows if t in topics and topics[t].retention_ms == -1},
        inputs,
        consumer.committed,
        config.topics_check_interval_ms / 1000,
        background,
        NeverBack(clock),
        log,
    )


def make_membership(
    config: StreamsConfig,
    consumer: Consumer,
    admin: TopicAdmin,
    leads: Callable[[], frozenset[TopicPartition]],
    *,
    background: Background,
    clock: Clock,
    log: Log,
) -> Membership:
    """Make the worker's place in its group."""
    return Membership(
        consumer,
        session_s=config.session_timeout_ms / 1000,
        assigned=partial(admin.assigned, config.application_id),
        leads=leads,
        background=background,
        clock=clock,
        log=log,
    )


def make_watch(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    admin: TopicAdmin,
    *,
    topics: dict[str, TopicFacts],
    partitions: dict[str, int],
    grown: Callable[[], bool],
    global_topics: Sequence[str] = (),
    background: Background,
    clock: Clock,
    log: Log,
) -> TopicWatch:
    """Make what looks at the application's topics again."""
    return TopicWatch(
        check=partial(_recheck, admin, [plan.topics for plan in plans], global_topics),
        plans=plans,
        topics=topics,
        partitions=partitions,
        grown=grown,
        interval_s=config.topics_check_interval_ms / 1000,
        background=background,
        clock=clock,
        log=log,
    )


def _recheck(
    admin: TopicAdmin,
    sub_topologies: Sequence[SubTopologyTopics],
    global_topics: Sequence[str],
    before: Mapping[str, TopicFacts],
) -> Mapping[str, TopicFacts]:
    own = {name: facts for name, facts in before.items() if name not in global_topics}
    found = recheck_topics(admin, sub_topologies, own)
    return {**found, **recheck_global_topics(admin, global_topics, before)}
