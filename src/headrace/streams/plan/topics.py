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


_POLL_S = 0.1
_RETRY_S = 1.0

_log = get_logger()


BeforeCreate = Callable[[TopicPlan, Mapping[str, TopicDescription]], None]


def partitions_of(
    names: Iterable[str], descriptions: Mapping[str, TopicDescription]
) -> list[TopicPartition]:
    """Return all partitions of the topics that exist."""
    return [
        TopicPartition(name, partition)
        for name in names
        if name in descriptions
        for partition in range(descriptions[name].partitions)
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

    `before_create` is called with the plan, even if it creates nothing, and with the topology's
    existing topics; it may raise. The result has all topics with a constant name.
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
    """Create missing topics, wait until they appear, check all, and return their descriptions."""
    if plan.create:
        admin.create(plan.create)
        for topic in plan.create:
            _log.info("topic_created", topic=topic.name, partitions=topic.partitions)
    descriptions = await_topics(admin, plan.names, timeout_s=timeout_s)
    check_internal_topics(plan, descriptions)
    return descriptions


def await_topics(
    admin: AdminClient, names: Collection[str], *, timeout_s: float
) -> dict[str, TopicDescription]:
    """Describe topics, waiting for created topics: a broker learns of them a short time later."""
    give_up_at = time.monotonic() + timeout_s
    while absent := sorted({*names} - (descriptions := admin.describe(names)).keys()):
        if time.monotonic() >= give_up_at:
            raise FatalClientError(
                f"topics {', '.join(absent)} were created but did not appear within {timeout_s:g} "
                "s. Check the brokers' logs, or raise task.timeout.ms."
            )
        time.sleep(_POLL_S)
    return descriptions


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
    changelogs = {changelog.name for sub in sub_topologies for changelog in sub.changelogs}
    written = before.keys() - read - changelogs
    descriptions = describe_twice(admin, names, before.keys(), written=written)
    lost = sorted(written - descriptions.keys())
    if lost:
        raise MissingTopicError(
            f"topics that the application writes were deleted: {', '.join(lost)}; re-create them, "
            "or remove them from the topology, then start the application",
            topics=lost,
        )
    plan = plan_internal_topics(sub_topologies, descriptions)
    deleted = [topic.name for topic in plan.create]
    sources = frozenset(plan.sources)
    known = {name: topic.topic_id for name, topic in before.items()}
    require_same(
        known, {name: descriptions[name].topic_id for name in sources if name in descriptions}
    )
    other = {
        n for n, f in descriptions.items() if n in known and not same_topic(f.topic_id, known[n])
    }
    for name in sorted(other & written):
        # The old records are lost, but the output is complete from here on.
        _log.warning("output_replaced", topic=name)
    recreated = sorted(other - written)
    for changed, what in ((deleted, "deleted"), (recreated, "deleted and re-created")):
        if changed:
            raise MisconfiguredTopicError(
                f"topics {', '.join(changed)} were {what} while the application runs: committed "
                "offsets and local state belong to the previous topics; stop all workers and reset "
                "the application, or restore the topics; headrace changelog restore-from-local "
                "writes changelogs again from local rows"
            )
    return descriptions


def recheck_global_topics(
    admin: AdminClient, names: Sequence[str], before: Mapping[str, TopicDescription]
) -> dict[str, TopicDescription]:
    """Check the topics of global tables; their partition counts may have grown."""
    descriptions = admin.describe(names) if names else {}
    if len(descriptions) < len(names):
        time.sleep(_RETRY_S)
        descriptions = admin.describe(names)
    missing = [name for name in names if name not in descriptions]
    if missing:
        raise MissingTopicError(
            f"topics of global tables were deleted: {', '.join(missing)}; re-create them, or "
            "remove them from the topology, then start the application",
            topics=missing,
        )
    for name, current in descriptions.items():
        if current.topic_id != before[name].topic_id:
            raise GlobalTableLostError(name, "its topic was deleted and re-created")
    return descriptions


def describe_twice(
    admin: AdminClient,
    names: Iterable[str],
    expected: AbstractSet[str],
    *,
    written: AbstractSet[str] = frozenset(),
) -> dict[str, TopicDescription]:
    """Describe topics, with a retry for expected topics: a broker may learn of a topic later."""
    asked = tuple(dict.fromkeys(names))
    descriptions = describe_as(admin, asked, written=written)
    if expected <= descriptions.keys():
        return descriptions
    time.sleep(_RETRY_S)
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
