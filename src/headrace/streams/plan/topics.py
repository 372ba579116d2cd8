"""The topics of an application on a cluster: make the internal ones, check all, look again later.

What is needed follows from `headrace.streams.plan.topic_plan`, which is pure; here is the order of
the calls. Several workers start at once and each does all of this: whoever comes second finds the
topics there and checks them like topics of long ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from headrace.state.log import get_logger
from headrace.streams.errors import (
    FatalClientError,
    GlobalTableLostError,
    MisconfiguredTopicError,
    MissingTopicError,
)
from headrace.streams.kafka.access_errors import AccessError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupState,
    NewTopic,
    TopicFacts,
    TopicPartition,
)
from headrace.streams.plan.topic_errors import require_same
from headrace.streams.plan.topic_identity import same_topic
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

# Topics that functions name: each is looked for before the first record goes there.


def known_topics_alone(send: Send, find: Callable[[str], object]) -> Send:
    """Send to a topic only after it was found.

    A client would keep records for a topic that does not exist, and say so of none of them.

    Args:
        find: raises what is to be raised for a topic that does not exist.

    Raises:
        NoTopicError: a function returned something else than a name.
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


BeforeCreate = Callable[[TopicPlan, Mapping[str, TopicFacts]], None]


class TopicAdmin(Protocol):
    """What the runtime asks of a cluster about topics; the live one is
    `headrace.streams.kafka.admin.LiveAdmin`.

    Every call repeats itself after temporary errors and raises one of `headrace.streams.errors`
    after others, or when its time is up.
    """

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""

    def ask_ids(self, topics: Sequence[str]) -> Callable[[float], Mapping[str, str] | None]:
        """Ask for the ids of those topics that exist; returns what waits so long for the answer.

        None is no answer. Nothing is repeated or raised.
        """

    def names(self) -> frozenset[str]:
        """All topics that this client may see, for suggestions; empty when that cannot be told."""

    def groups(self) -> frozenset[str]:
        """All groups that this client may see; empty when that cannot be told."""

    def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics; one that exists already is left as it is."""

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record, committed or not: the high watermark."""

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset: behind everything whose transaction is decided."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that is still there."""

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before these offsets."""

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        """Set some configs of a topic and leave the others; None goes back to the default."""

    def broker_configs(self, name: str) -> Sequence[str]:
        """What the brokers have for a setting, asked once."""

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        """The partitions that a group's members have, or None while the group is not stable."""

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """What a group has committed, with the text beside it; without what it never has."""

    def group_state(self, group: str) -> GroupState:
        """The state of a group, and what its members were given."""

    def progress(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """What a group has committed, whatever is about to be; without what it never has."""


def prepare_topics(
    admin: TopicAdmin,
    sub_topologies: Sequence[SubTopologyTopics],
    *,
    replication_factor: int,
    topic_configs: Mapping[str, str],
    timeout_s: float,
    before_create: BeforeCreate = lambda _, __: None,
) -> dict[str, TopicFacts]:
    """Make the cluster ready for a topology, before the first record is read.

    Args:
        timeout_s: how long new topics may take to appear, in seconds.
        before_create: called with what is to be created, which may be nothing, and what is there
            of the topology's topics; it may refuse.

    Returns:
        The facts of every topic of the application that has a constant name.

    Raises:
        MissingTopicError: a source or an output topic does not exist.
        MisconfiguredTopicError: topics do not fit each other or the topology.
        ConfigError: an internal topic cannot be made with these settings.
        FatalClientError: the cluster does not answer, or does not permit it.
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


def ensure_topics(admin: TopicAdmin, plan: TopicPlan, *, timeout_s: float) -> dict[str, TopicFacts]:
    """Create what the plan says is to be created, and return the facts of all its topics.

    Raises:
        MisconfiguredTopicError: someone else made one of the topics otherwise in the meantime.
        FatalClientError: a new topic did not appear in time.
    """
    if plan.create:
        admin.create(plan.create)
        for topic in plan.create:
            _log.info("topic_created", topic=topic.name, partitions=topic.partitions)
    give_up_at = time.monotonic() + timeout_s
    while True:
        facts = admin.describe(plan.names)
        absent = [name for name in plan.names if name not in facts]
        if not absent:
            break
        if time.monotonic() >= give_up_at:
            raise FatalClientError(
                f"topics {', '.join(absent)} were created but did not appear within {timeout_s:g} "
                "s; look into the brokers' logs, or raise task.timeout.ms"
            )
        # A broker hears of a new topic a moment after the controller has made it.
        time.sleep(_LOOK_AGAIN_S)
    check_internal_topics(plan, facts)
    return facts


def recheck_topics(
    admin: TopicAdmin,
    sub_topologies: Sequence[SubTopologyTopics],
    before: Mapping[str, TopicFacts],
) -> dict[str, TopicFacts]:
    """Check the topics of a running application; nothing is created.

    Args:
        admin: the cluster; with a short time-out, as records wait while it is asked.
        before: what `prepare_topics` or the last call returned.

    Returns:
        The facts as they are now; the partition count of a source without state may have grown.

    Raises:
        MissingTopicError: a source topic was deleted, or one that is written.
        TopicReplacedError: a source topic was deleted and created anew.
        MisconfiguredTopicError: an internal topic was deleted, or deleted and created anew, or a
            source grew past its changelog.
        FatalClientError: the cluster does not answer, so nothing is known.
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
        # What was in the old one is gone, and what comes next is complete.
        _log.warning("output_replaced", topic=name)
    anew = sorted(other - written)
    for changed, what in ((deleted, "deleted"), (anew, "deleted and created anew")):
        if changed:
            raise MisconfiguredTopicError(
                f"topics {', '.join(changed)} were {what} while the application runs: committed "
                "offsets and local state belong to what was there before; stop all workers and "
                "reset the application, or restore the topics; headrace changelog "
                "restore-from-local writes changelogs anew from local rows"
            )
    return facts


def recheck_global_topics(
    admin: TopicAdmin, names: Sequence[str], before: Mapping[str, TopicFacts]
) -> dict[str, TopicFacts]:
    """Check the topics of global tables; their partitions may have grown.

    Raises:
        MissingTopicError: one was deleted.
        GlobalTableLostError: one was deleted and created anew.
        FatalClientError: the cluster does not answer, so nothing is known.
    """
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
    for name, found in facts.items():
        if found.topic_id != before[name].topic_id:
            raise GlobalTableLostError(name, "its topic was deleted and created anew")
    return facts


def describe_twice(
    admin: TopicAdmin,
    names: Iterable[str],
    expected: AbstractSet[str],
    *,
    written: AbstractSet[str] = frozenset(),
) -> dict[str, TopicFacts]:
    """Describe topics, and look twice before one that is expected counts as missing.

    The broker that answers may hear a moment later than others of a topic that is new.

    Args:
        expected: those that are to be there.
        written: those that are written and not read: where one is denied, that right is missing.

    Raises:
        AccessError: one is denied (see `describe_as`).
    """
    asked = tuple(dict.fromkeys(names))
    facts = describe_as(admin, asked, written=written)
    if expected <= facts.keys():
        return facts
    time.sleep(_SECOND_LOOK_S)
    return describe_as(admin, asked, written=written)


class _Describes(Protocol):
    """A cluster, as much of it as is asked for topics."""

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""


def describe_as(
    admin: _Describes, names: Iterable[str], *, written: AbstractSet[str] = frozenset()
) -> dict[str, TopicFacts]:
    """Describe topics that are read, but for those that are written.

    Raises:
        AccessError: one is denied; it names the right to read or to write, which includes looking.
    """
    try:
        return admin.describe(names)
    except AccessError as error:
        is_written = any(error.resource == f"the topic {name}" for name in written)
        raise error.needing("Write" if is_written else "Read") from error
