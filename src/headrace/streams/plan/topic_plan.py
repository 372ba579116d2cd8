"""Internal topics of a topology, and the check of existing topics; pure functions.

The partition count of a repartition topic is, in this order: the count given as ``partitions=``;
the count of the external topics that it must be co-partitioned with; the largest count of any
source of the sub-topologies that write it, followed through other repartition topics. A changelog
has as many partitions as its sub-topology has tasks, which is the largest count of its sources. No
count depends on which internal topics already exist: an existing topic with another count is
refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.state.spec import StoreSpec
from headrace.streams.config.settings import LEGAL_NAME, NAME_LENGTH_MAX
from headrace.streams.errors import ConfigError, MisconfiguredTopicError, MissingTopicError
from headrace.streams.kafka.protocols import NewTopic, TopicDescription, policies_of

REPARTITION_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": str(50 * 1024 * 1024),
    "message.timestamp.type": "CreateTime",
}
CHANGELOG_CONFIG = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}

VERSIONS_MORE_MS = 86_400_000
"""Additional retention of versions in the changelog (Kafka Streams: 24 hours)."""


def changelog_config(spec: StoreSpec, additional_retention_ms: int) -> Mapping[str, str]:
    """Return the configs of a store's changelog that differ from the default.

    >>> spec = StoreSpec("w", layout="window", retention_ms=60_000)
    >>> changelog_config(spec, 86_400_000)
    {'cleanup.policy': 'compact,delete', 'retention.ms': '86460000'}
    """
    config = dict(spec.topic_config)
    if spec.layout == "versioned" and spec.retention_ms is not None:
        # Compaction keeps only the last record of a key, so it must not start within the history.
        return {"min.compaction.lag.ms": str(spec.retention_ms + VERSIONS_MORE_MS), **config}
    if spec.retention_ms is None or spec.rows.time_of is None:
        return config
    retention_ms = spec.retention_ms + additional_retention_ms
    return {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms), **config}


_PARTITIONS_REQUESTED = "asked for with partitions="

_RESET = (
    "reset the application (headrace reset deletes its internal topics and its local state and "
    "sets its offsets) so that it reads its input again"
)


@dataclass(frozen=True, slots=True)
class RepartitionTopic:
    """Repartition topic: its full name and the requested partition count."""

    name: str
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class ChangelogTopic:
    """Changelog of a store: its full name and the configs that differ from the default."""

    name: str
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubTopologyTopics:
    """Topics of a sub-topology.

    Args:
        changelogs: the changelogs of its stores, without stores that reuse a source topic.
        copartitioned: sets of source topics that must have equal partition counts; None puts all
            sources into one set.
        reused: sources that also serve as changelogs.
        sinks: external topics that it writes under constant names.
    """

    id: int
    sources: tuple[str, ...] = ()
    repartition_sources: tuple[RepartitionTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[ChangelogTopic, ...] = ()
    copartitioned: tuple[frozenset[str], ...] | None = None
    reused: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()

    @property
    def all_sources(self) -> tuple[str, ...]:
        """The names of all topics that it reads."""
        return self.sources + tuple(topic.name for topic in self.repartition_sources)

    @property
    def groups(self) -> tuple[frozenset[str], ...]:
        """The sets of topics that must have equal partition counts."""
        return (frozenset(self.all_sources),) if self.copartitioned is None else self.copartitioned


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """Required internal topics, and the topics that must be created."""

    sources: tuple[str, ...]
    internal: tuple[NewTopic, ...]
    create: tuple[NewTopic, ...]
    sinks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        names = (*self.sources, *(topic.name for topic in self.internal), *self.sinks)
        return tuple(dict.fromkeys(names))


def topic_names(sub_topologies: Iterable[SubTopologyTopics]) -> tuple[str, ...]:
    """Return the topics that `plan_internal_topics` requires described."""
    names: dict[str, None] = {}
    for sub in sub_topologies:
        names.update(dict.fromkeys(sub.all_sources))
        names.update(dict.fromkeys(changelog.name for changelog in sub.changelogs))
        names.update(dict.fromkeys(sub.sinks))
    return tuple(names)


def plan_internal_topics(
    sub_topologies: Sequence[SubTopologyTopics],
    existing: Mapping[str, TopicDescription],
    *,
    replication_factor: int = -1,
    topic_configs: Mapping[str, str] | None = None,
    names: Iterable[str] = (),
) -> TopicPlan:
    """Determine partition counts and configs of internal topics, and check existing topics.

    `existing` has the topics of `topic_names`, and `names` all topics, for suggestions. A store's
    own configs override `topic_configs`.

    >>> word_count = SubTopologyTopics(0, ("lines",), changelogs=(ChangelogTopic("counts"),))
    >>> lines = TopicDescription("lines", 6, "id-1")
    >>> plan = plan_internal_topics([word_count], {"lines": lines})
    >>> [(topic.name, topic.partitions) for topic in plan.create]
    [('counts', 6)]
    """
    _require_external(sub_topologies, existing, names)
    _require_rows_to_stay(sub_topologies, existing)
    counts = _Counts(sub_topologies, existing)
    internal = tuple(
        _internal_topics(sub_topologies, counts, replication_factor, topic_configs or {})
    )
    _check_names(internal)
    plan = TopicPlan(
        sources=tuple(dict.fromkeys(name for sub in sub_topologies for name in sub.sources)),
        internal=internal,
        create=tuple(topic for topic in internal if topic.name not in existing),
        sinks=tuple(dict.fromkeys(name for sub in sub_topologies for name in sub.sinks)),
    )
    check_internal_topics(plan, existing)
    return plan


def check_internal_topics(plan: TopicPlan, existing: Mapping[str, TopicDescription]) -> None:
    """Raise MisconfiguredTopicError with each difference from the plan and its fix."""
    problems = [
        problem
        for topic in plan.internal
        if topic.name in existing
        for problem in _differences(topic, existing[topic.name])
    ]
    if problems:
        raise MisconfiguredTopicError("; ".join(problems))


def _require_external(
    sub_topologies: Sequence[SubTopologyTopics],
    existing: Mapping[str, TopicDescription],
    names: Iterable[str],
) -> None:
    sources = dict.fromkeys(name for sub in sub_topologies for name in sub.sources)
    sinks = dict.fromkeys(name for sub in sub_topologies for name in sub.sinks)
    kinds = {"source": sources, "output": [name for name in sinks if name not in sources]}
    missing = {kind: [n for n in some if n not in existing] for kind, some in kinds.items()}
    absent = [name for some in missing.values() for name in some]
    if not absent:
        return
    known = sorted({*names, *existing})
    listed = "; ".join(
        f"{kind} topics that do not exist: {', '.join(did_you_mean(n, known) for n in some)}"
        for kind, some in missing.items()
        if some
    )
    raise MissingTopicError(
        f"{listed}; create them with the partition count you want to keep, as headrace topics "
        "create --app MODULE:APP --partitions N does, or correct the names in the topology",
        topics=absent,
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the name of a missing topic, with the most similar existing topic as a suggestion.

    >>> did_you_mean("oders", ["orders", "users"])
    'oders (did you mean orders?)'
    """
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"{name} (did you mean {nearest[0]}?)" if nearest else name


def _require_rows_to_stay(
    sub_topologies: Iterable[SubTopologyTopics], existing: Mapping[str, TopicDescription]
) -> None:
    """Refuse a source topic as a changelog if it deletes the last record of a key."""
    for name in dict.fromkeys(name for sub in sub_topologies for name in sub.reused):
        policy, kept_ms = existing[name].cleanup_policy, existing[name].retention_ms
        if policy is not None and "delete" in policy and kept_ms is not None and kept_ms >= 0:
            raise MisconfiguredTopicError(
                f"topic {name} serves as the changelog of the table that is read from it, and "
                f"deletes records after {kept_ms} ms, so rows would be lost; "
                f"{_alter(name, 'cleanup.policy', 'compact')}, or remove "
                "reuse.ktable.source.topics from topology.optimization, which gives the table its "
                "own changelog"
            )


class _Counts:
    """Partition counts of all source topics, and the reason for each internal topic's count."""

    def __init__(
        self, sub_topologies: Sequence[SubTopologyTopics], existing: Mapping[str, TopicDescription]
    ) -> None:
        self.of: dict[str, int] = {}
        self.because: dict[str, str] = {}
        self._origin: dict[str, str] = {}
        """By repartition topic: the topic whose partition count it has inherited."""
        self._repartition = {t.name: t for sub in sub_topologies for t in sub.repartition_sources}
        for sub in sub_topologies:
            for name in sub.sources:
                self.of[name] = existing[name].partitions
        for topic in self._repartition.values():
            if topic.partitions is not None:
                self._set_count(topic.name, topic.partitions, _PARTITIONS_REQUESTED)
        self._derive(sub_topologies)
        for sub in sub_topologies:
            for group in sub.groups:
                self._agree(sub.id, group)

    def _set_count(self, name: str, count: int, because: str) -> None:
        self.of[name] = count
        self.because[name] = because

    def origin(self, name: str) -> str:
        """Return the topic that determines a count: a source, or a topic with partitions=."""
        return self._origin.get(name, name)

    def _derive(self, sub_topologies: Sequence[SubTopologyTopics]) -> None:
        """Propagate the largest count until nothing changes: output may be read by its writer."""
        open_names = [name for name in self._repartition if name not in self.of]
        self.of.update(dict.fromkeys(open_names, 0))
        changed = True
        while changed:
            changed = False
            for name in open_names:
                for sub in sub_topologies:
                    if name not in sub.repartition_sinks:
                        continue
                    widest = max(sub.all_sources, key=self.of.__getitem__)
                    if self.of[widest] > self.of[name]:
                        self._origin[name] = self.origin(widest)
                        self._set_count(name, self.of[widest], f"as many as {self.origin(widest)}")
                        changed = True
        for name in open_names:
            if self.of[name] == 0:
                raise ValueError(f"repartition topic {name} is written by no sub-topology")

    def _agree(self, sub_id: int, group: frozenset[str]) -> None:
        """Give the repartition topics of a co-partitioned group the fixed count of the group."""
        free = [name for name in sorted(group) if self._is_free(name)]
        fixed = [name for name in sorted(group) if not self._is_free(name)]
        if not fixed:
            fixed = [max(free, key=self.of.__getitem__)]
        if len({self.of[name] for name in fixed}) > 1:
            raise MisconfiguredTopicError(self._unequal(sub_id, fixed))
        for name in free:
            if self.of[name] != self.of[fixed[0]]:
                self._origin[name] = self.origin(fixed[0])
                self._set_count(name, self.of[fixed[0]], f"co-partitioned with {fixed[0]}")

    def _is_free(self, name: str) -> bool:
        topic = self._repartition.get(name)
        return topic is not None and topic.partitions is None

    def _unequal(self, sub_id: int, fixed: Sequence[str]) -> str:
        counted = ", ".join(f"{name} has {self.of[name]}" for name in fixed)
        asked = [name for name in fixed if name in self._repartition]
        advice = (
            f"leave out partitions= of {', '.join(asked)}"
            if asked
            else "put .repartition() before the join on one side, or re-create one of the topics "
            "with the other's count"
        )
        return (
            f"topics that sub-topology {sub_id} joins must have equal partition counts, so that "
            f"equal keys are in the same task, but {counted}; {advice}"
        )


def _internal_topics(
    sub_topologies: Iterable[SubTopologyTopics],
    counts: _Counts,
    replication_factor: int,
    topic_configs: Mapping[str, str],
) -> Iterator[NewTopic]:
    for sub in sub_topologies:
        for topic in sub.repartition_sources:
            yield NewTopic(
                name=topic.name,
                partitions=counts.of[topic.name],
                replication_factor=replication_factor,
                config={**REPARTITION_CONFIG, **topic_configs},
                because=counts.because[topic.name],
                changelog=False,
            )
        for changelog in sub.changelogs:
            widest = max(sub.all_sources, key=counts.of.__getitem__)
            yield NewTopic(
                name=changelog.name,
                partitions=counts.of[widest],
                replication_factor=replication_factor,
                config={**CHANGELOG_CONFIG, **topic_configs, **changelog.config},
                because=f"as many as {counts.origin(widest)}",
                changelog=True,
            )


def _check_names(topics: Iterable[NewTopic]) -> None:
    problems = []
    for name in (topic.name for topic in topics):
        if len(name) > NAME_LENGTH_MAX:
            problems.append(
                f"internal topic {name} would have {len(name)} characters, more than Kafka's "
                f"limit of {NAME_LENGTH_MAX}; shorten application.id or the name of the step"
            )
        elif not LEGAL_NAME.fullmatch(name):
            problems.append(
                f"internal topic {name!r} would have characters that Kafka rejects; use letters, "
                "digits, '.', '_' and '-' in the name of the step"
            )
    if problems:
        raise ConfigError(*problems)


def _differences(topic: NewTopic, actual: TopicDescription) -> Iterator[str]:
    if actual.partitions != topic.partitions:
        advice = _other_changelog if topic.changelog else _other_repartition
        yield advice(topic, actual)
    policy = topic.config["cleanup.policy"]
    if actual.cleanup_policy not in (None, policies_of(policy)):
        lost = f"; if rows were deleted already, {_RESET}" if topic.changelog else ""
        yield (
            f"{topic.name} has cleanup.policy {actual.config['cleanup.policy']} and needs "
            f"{policy}; {_alter(topic.name, 'cleanup.policy', policy)}{lost}"
        )
    lag_ms = topic.config.get("min.compaction.lag.ms")
    actual_ms = actual.min_compaction_lag_ms
    if lag_ms is not None and actual_ms is not None and actual_ms < int(lag_ms):
        yield (
            f"{topic.name} has min.compaction.lag.ms {actual_ms} and needs {lag_ms}, otherwise "
            "compaction removes versions of the history; "
            f"{_alter(topic.name, 'min.compaction.lag.ms', lag_ms)}"
        )
    needed_ms = topic.config.get("retention.ms")
    if needed_ms is None or "delete" not in policies_of(policy) or actual.retention_ms is None:
        return
    if _span(actual.retention_ms) < _span(int(needed_ms)):
        yield (
            f"{topic.name} has retention.ms {actual.retention_ms} and needs {needed_ms}, otherwise "
            "records are deleted before they are read; "
            f"{_alter(topic.name, 'retention.ms', needed_ms)}"
        )


def _other_repartition(topic: NewTopic, actual: TopicDescription) -> str:
    keep = (
        f"ask for partitions={actual.partitions}"
        if topic.because == _PARTITIONS_REQUESTED
        else f"put .repartition(partitions={actual.partitions}) with the same name= before it"
    )
    return (
        f"repartition topic {topic.name} has {actual.partitions} partitions and needs "
        f"{topic.partitions} ({topic.because}); to keep it, {keep}; for the other count give the "
        "operator another name=, which creates a new topic, after the application has read the old "
        "topic to its end; a topic without records, such as a topic created by hand, may be "
        "deleted: the next start creates it again"
    )


def _other_changelog(topic: NewTopic, actual: TopicDescription) -> str:
    source = topic.because.removeprefix("as many as ")
    grown = "grew" if actual.partitions < topic.partitions else "was another topic"
    return (
        f"changelog {topic.name} has {actual.partitions} partitions but source {source} has "
        f"{topic.partitions}: the source {grown}, and keys are now in other partitions than their "
        f"state. Nothing was read. Put .repartition(partitions={actual.partitions}) before the "
        f"stateful operator, which sends each key to its state, or {_RESET}"
    )


def _alter(topic: str, name: str, value: str) -> str:
    return f"run headrace topics set {topic} {name}={value}"


def _span(retention_ms: int) -> float:
    return float("inf") if retention_ms < 0 else retention_ms
