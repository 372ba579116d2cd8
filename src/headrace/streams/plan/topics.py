"""Topics of an application on a cluster: creation, checks at the start, and repeated checks.

The required topics follow from `headrace.streams.plan.topic_plan`, which is pure; this module calls
the cluster. Several workers start at the same time, and each of them makes all calls: a worker that
finds a topic already created checks it like any existing topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from headrace.state.log import get_logger
from headrace.streams.errors import (
    FatalClientError,
    GlobalTableLostError,
    MisconfiguredTopicError,
    MissingTopicError,
)
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.protocols import (
    AdminClient,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.identity import require_same, same_topic
from headrace.streams.plan.topic_plan import (
    SubTopologyTopics,
    TopicPlan,
    check_internal_topics,
    plan_internal_topics,
    topic_names,
)
from headrace.topology.context.environment import Send
from headrace.topology.errors import NoTopicError, type_of
from headrace.topology.naming import is_legal_topic

# Topics named by user functions: each is checked before the first record is sent.


def known_topics_alone(send: Send, find: Callable[[str], object]) -> Send:
    """Wrap a send function so that `find` raises before the first record of a missing topic.

    A client would queue its records without reporting an error.
    """
    known: set[str] = set()

    def checked(topic: str, *record: Any) -> None:
        if topic not in known:
            if not isinstance(topic, str):
                raise NoTopicError(type_of(topic))
            if not is_legal_topic(topic):
                raise NoTopicError("a str that is not the name of a topic")
            find(topic)
            known.add(topic)
        send(topic, *record)

    return checked


_LOOK_AGAIN_S = 0.1
_SECOND_LOOK_S = 1.0

_log = get_logger()


BeforeCreate = Callable[[TopicPlan, Mapping[str, TopicDescription]], None]


def partitions_of(
    names: Iterable[str], facts: Mapping[str, TopicDescription]
) -> list[TopicPartition]:
    """Return all partitions of the topics that exist."""
    return [
        TopicPartition(name, partition)
        for name in names
        if name in facts
        for partition in range(facts[name].partitions)
    ]


def prepare_topics(
    admin: AdminClient,
    sub_topologies: Sequence[SubTopologyTopics],
    *,
    replication_factor: int,
    topic_configs: Mapping[str, str],
    timeout_s: float,
    before_create: BeforeCreate = lambda _, __: None,
) -> dict[str, TopicDescription]:
    """Check the external topics and create the internal topics, before the first record is read.

    `before_create` is called with the plan, even if it creates nothing, and with the facts of the
    topology's existing topics; it may raise. The result has all topics with a constant name.
    """
    given = {name for sub in sub_topologies for name in (*sub.sources, *sub.sinks)}
    sinks = {name for sub in sub_topologies for name in sub.sinks}
    existing = describe_twice(admin, topic_names(sub_topologies), given, written=sinks)
    plan = plan_internal_topics(
        sub_topologies,
        existing,
        replication_factor=replication_factor,
        topic_configs=topic_configs,
        names=() if given <= existing.keys() else admin.names(),
    )
    before_create(plan, existing)
    return ensure_topics(admin, plan, timeout_s=timeout_s)


def ensure_topics(
    admin: AdminClient, plan: TopicPlan, *, timeout_s: float
) -> dict[str, TopicDescription]:
    """Create missing topics, wait until they appear, check all, and return the facts of all."""
    if plan.create:
        admin.create(plan.create)
        for topic in plan.create:
            _log.info("topic_created", topic=topic.name, partitions=topic.partitions)
    facts = await_topics(admin, plan.names, timeout_s=timeout_s)
    check_internal_topics(plan, facts)
    return facts


def await_topics(
    admin: AdminClient, names: Collection[str], *, timeout_s: float
) -> dict[str, TopicDescription]:
    """Describe topics, waiting for created topics: a broker learns of them a short time later."""
    give_up_at = time.monotonic() + timeout_s
    while absent := sorted({*names} - (facts := admin.describe(names)).keys()):
        if time.monotonic() >= give_up_at:
            raise FatalClientError(
                f"topics {', '.join(absent)} were created but did not appear within {timeout_s:g} "
                "s. Check the brokers' logs, or raise task.timeout.ms."
            )
        time.sleep(_LOOK_AGAIN_S)
    return facts


def recheck_topics(
    admin: AdminClient,
    sub_topologies: Sequence[SubTopologyTopics],
    before: Mapping[str, TopicDescription],
) -> dict[str, TopicDescription]:
    """Check the topics of a running application; nothing is created.

    The admin client's time-out should be short, because processing waits. The partition count of a
    source without state may have grown.
    """
    names = (*topic_names(sub_topologies), *before)
    read = {name for sub in sub_topologies for name in sub.all_sources}
    kept = {changelog.name for sub in sub_topologies for changelog in sub.changelogs}
    written = before.keys() - read - kept
    facts = describe_twice(admin, names, before.keys(), written=written)
    lost = sorted(written - facts.keys())
    if lost:
        raise MissingTopicError(
            f"topics that the application writes were deleted: {', '.join(lost)}; create them "
            "again, or take them out of the topology, then start the application",
            topics=lost,
        )
    plan = plan_internal_topics(sub_topologies, facts)
    deleted = [topic.name for topic in plan.create]
    sources = frozenset(plan.sources)
    known = {name: found.topic_id for name, found in before.items()}
    require_same(known, {name: facts[name].topic_id for name in sources if name in facts})
    other = {n for n, f in facts.items() if n in known and not same_topic(f.topic_id, known[n])}
    for name in sorted(other & written):
        # The old records are lost, but the output is complete from here on.
        _log.warning("output_replaced", topic=name)
    anew = sorted(other - written)
    for changed, what in ((deleted, "deleted"), (anew, "deleted and re-created")):
        if changed:
            raise MisconfiguredTopicError(
                f"topics {', '.join(changed)} were {what} while the application runs: committed "
                "offsets and local state belong to the previous topics; stop all workers and reset "
                "the application, or restore the topics; headrace changelog restore-from-local "
                "writes changelogs again from local rows"
            )
    return facts


def recheck_global_topics(
    admin: AdminClient, names: Sequence[str], before: Mapping[str, TopicDescription]
) -> dict[str, TopicDescription]:
    """Check the topics of global tables; their partition counts may have grown."""
    facts = admin.describe(names) if names else {}
    if len(facts) < len(names):
        time.sleep(_SECOND_LOOK_S)
        facts = admin.describe(names)
    missing = [name for name in names if name not in facts]
    if missing:
        raise MissingTopicError(
            f"topics of global tables were deleted: {', '.join(missing)}; create them again, or "
            "take them out of the topology, then start the application",
            topics=missing,
        )
    for name, current in facts.items():
        if current.topic_id != before[name].topic_id:
            raise GlobalTableLostError(name, "its topic was deleted and re-created")
    return facts


def describe_twice(
    admin: AdminClient,
    names: Iterable[str],
    expected: AbstractSet[str],
    *,
    written: AbstractSet[str] = frozenset(),
) -> dict[str, TopicDescription]:
    """Describe topics, with a retry for expected topics: a broker may learn of a topic later."""
    asked = tuple(dict.fromkeys(names))
    facts = describe_as(admin, asked, written=written)
    if expected <= facts.keys():
        return facts
    time.sleep(_SECOND_LOOK_S)
    return describe_as(admin, asked, written=written)


def describe_as(
    admin: AdminClient, names: Iterable[str], *, written: AbstractSet[str] = frozenset()
) -> dict[str, TopicDescription]:
    """Describe topics; name the ACL if it is denied: Write for topics in `written`, else Read."""
    try:
        return admin.describe(names)
    except AccessError as error:
        is_written = any(error.resource == f"the topic {name}" for name in written)
        raise error.needing("Write" if is_written else "Read") from error
