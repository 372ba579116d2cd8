"""Topics of a mirror on both clusters: selected, created, extended, and rejected.

Only its mirror writes to a topic at the target. Records must never return to a cluster that they
were copied from: the tables of mirrors at the source contain the origin clusters of its topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.state.log import get_logger
from headrace.streams.errors import (
    ConfigError,
    MisconfiguredTopicError,
    MissingTopicError,
)
from headrace.streams.kafka.protocols import NewTopic, TopicDescription, TopicPartition
from headrace.streams.mirror.cluster import MirrorCluster, fitting
from headrace.streams.mirror.names import (
    MirroredTopicReplacedError,
    Naming,
    Selection,
    is_table,
    table_of,
)
from headrace.streams.mirror.table import Mirrored, Row, Table, coming_row, rows_of
from headrace.streams.plan.identity import same_topic
from headrace.streams.plan.topic_plan import did_you_mean
from headrace.streams.plan.topics import await_topics

MESSAGE_MAX = 1_048_588
"""Kafka's default of max.message.bytes."""
_KEEPS_TIMES = {"message.timestamp.type": "CreateTime"}
_APPEAR_S = 10.0


@dataclass(frozen=True, slots=True)
class Side:
    """Source or target of a mirror.

    Args:
        name: display name.
        id: the cluster's id.
        reading: librdkafka's settings for consumers.
    """

    name: str
    id: str
    cluster: MirrorCluster
    reading: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """Topic of the source with its topic at the target.

    Args:
        partitions: partition count of the source; the target has at least as many.
        limit: max.message.bytes of the target.
    """

    topic: str
    partitions: int
    limit: int
    mirrored: Mirrored


class MirrorTopics:
    """Topics of a mirror on both clusters: created, extended or rejected.

    Args:
        replication_factor: replication factor of created topics; -1 uses the target's default.
    """

    def __init__(
        self,
        name: str,
        source: Side,
        target: Side,
        selection: Selection,
        naming: Naming,
        *,
        replication_factor: int,
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._selection = selection
        self._naming = naming
        self._replication_factor = replication_factor
        self._log = get_logger().bind(mirror=name)
        self._logged_copies: set[str] = set()
        self._created: set[str] = set()
        self._via: dict[str, frozenset[str]] = {}
        self._seen: frozenset[str] = frozenset()

    def limits(self, table: Table) -> dict[str, int]:
        """Return the size limit of each target topic, including topics to be created."""
        _, targets, there = self._found(table)
        limits = {}
        for name, target in targets.items():
            if target in there:
                limits[target] = there[target].max_message_bytes or MESSAGE_MAX
            else:
                own = self._source.cluster.own_configs(name)
                limits[target] = int(own.get("max.message.bytes", MESSAGE_MAX))
        return limits

    def update(self, table: Table, write: Callable[[list[Row]], None]) -> list[Pair]:
        """Find, create and extend topics; `write` commits the origins before a topic is created."""
        sources, targets, there = self._found(table)
        lacking = [name for name in sources if targets[name] not in there]
        for name in lacking:
            self._require_new(table.topics.get(name), name, targets[name])
        if lacking:
            write([coming_row(targets[name], self._comes_by(name)) for name in lacking])
        for name, topic in sources.items():
            at_target = there.get(targets[name])
            if at_target is None:
                self._create(topic, targets[name])
            else:
                self._check_target(table.topics.get(name), topic, at_target)
        there = await_topics(self._target.cluster, targets.values(), timeout_s=_APPEAR_S)
        return [self._pair(sources[name], there[targets[name]]) for name in sorted(sources)]

    def _found(
        self, table: Table
    ) -> tuple[dict[str, TopicDescription], dict[str, str], dict[str, TopicDescription]]:
        """Return the source topics, their target names, and the existing target topics."""
        sources = self._selected()
        if not sources.keys() <= self._seen:
            self._via = self.origins()
            self._seen = frozenset(sources)
        copies = [name for name in sources if self._comes_back(name)]
        self._log_left_out(copies)
        for name in copies:
            del sources[name]
        targets = {name: self._naming.at_target(name) for name in sources}
        for name, topic in sources.items():
            self._check_known(table.topics.get(name), topic, targets[name])
        return sources, targets, self._target.cluster.describe(targets.values())

    def _comes_by(self, topic: str) -> frozenset[str]:
        return self._via.get(topic, frozenset()) | {self._source.id}

    def origins(self) -> dict[str, frozenset[str]]:
        """Return the origin clusters of the source's topics, from the tables of mirrors there."""
        source = self._source
        tables = [name for name in source.cluster.topic_names() if is_table(name)]
        origins: dict[str, set[str]] = {}
        for name in tables:
            try:
                table = read_table(source, name)
            except MissingTopicError:
                continue  # the table was deleted meanwhile
            for mirrored in table.topics.values():
                origins.setdefault(mirrored.target, set()).update((*mirrored.via, mirrored.cluster))
            for target, via in table.coming.items():
                origins.setdefault(target, set()).update(via)
        return {topic: frozenset(clusters) for topic, clusters in origins.items()}

    def would_come_back(self, topics: Iterable[str]) -> list[str]:
        """Return the topics whose records originate from the target."""
        via = self.origins()
        return [topic for topic in topics if self._target.id in via.get(topic, ())]

    def refuse_loop(self, *topics: str) -> None:
        source, target = self._source.name, self._target.name
        which = f"topic {topics[0]} of {source} is a copy of a topic of {target}"
        if len(topics) > 1:
            names = ", ".join(sorted(topics))
            which = f"topics {names} of {source} are copies of topics of {target}"
        raise ConfigError(
            f"{which}, to which records would return. Mirror the original topics, and give each "
            "direction a --rename such as '{cluster}.{topic}'."
        )

    def _selected(self) -> dict[str, TopicDescription]:
        source = self._source
        wanted = list(self._selection.names)
        if self._selection.patterns:
            known = self._selection.matching(source.cluster.topic_names())
            wanted += [name for name in known if name not in wanted]
        sources = source.cluster.describe(wanted)
        for name in self._selection.names:
            if name not in sources:
                meant = did_you_mean(name, source.cluster.names())
                raise MissingTopicError(
                    f"{source.name} has no topic {meant}. Correct --topics, or create the topic.",
                    topics=[name],
                )
            if is_table(name):
                raise ConfigError(
                    f"topic {name} is the table of a mirror. Remove it from --topics."
                )
        return sources

    def _comes_back(self, topic: str) -> bool:
        if self._target.id not in self._via.get(topic, ()):
            return False
        if topic in self._selection.names:
            self.refuse_loop(topic)
        return True

    def _log_left_out(self, copies: list[str]) -> None:
        new = sorted(set(copies) - self._logged_copies)
        self._logged_copies.update(new)
        if new:
            self._log.warning(
                "topics_excluded",
                topics=new,
                reason=f"copies of topics of {self._target.name}, to which records would return; "
                "records that other programs wrote to them are not mirrored",
            )

    def require_some(self, found: Collection[object]) -> None:
        """Raise if no topic matches and later topics are not followed."""
        if found:
            return
        if self._logged_copies:
            self.refuse_loop(*self._logged_copies)
        raise ConfigError(
            f"no topic of {self._source.name} matches {', '.join(self._selection.patterns)}. "
            "Correct --topics, or omit --once to wait for a topic."
        )

    def _check_known(self, known: Mirrored | None, topic: TopicDescription, target: str) -> None:
        if known is None:
            return
        if known.cluster != self._source.id:
            raise ConfigError(
                f"mirror {self._name} has copied {topic.name} of cluster {known.cluster}, and "
                f"{self._source.name} is cluster {self._source.id}. Correct --from, or use another "
                "--name."
            )
        if known.target != target:
            raise ConfigError(
                f"mirror {self._name} has copied {topic.name} as {known.target}, and --rename "
                f"makes it {target}. Use the previous --rename, or another --name."
            )
        self._require_same(known.source_id, topic, self._source)

    def _check_target(
        self, known: Mirrored | None, topic: TopicDescription, there: TopicDescription
    ) -> None:
        if known is not None:
            self._require_same(known.target_id, there, self._target)
        if known is None and there.name not in self._created:
            self._require_compatible(topic, there)
        elif there.partitions < topic.partitions:
            self._target.cluster.grow(there.name, topic.partitions)
            self._log.info("partitions_added", topic=there.name, partitions=topic.partitions)

    def _require_same(self, before: str, topic: TopicDescription, side: Side) -> None:
        if not same_topic(before, topic.topic_id):
            raise MirroredTopicReplacedError(
                topic.name, side.name, before=before, now=topic.topic_id, mirror=self._name
            )

    def _require_compatible(self, topic: TopicDescription, there: TopicDescription) -> None:
        """Raise unless an existing target topic is compatible and has no records."""
        where = f"topic {there.name} of {self._target.name}"
        if there.partitions < topic.partitions:
            raise MisconfiguredTopicError(
                f"{where} has {there.partitions} partitions, and {topic.name} of "
                f"{self._source.name} has {topic.partitions}. Delete it, add partitions, or use "
                "another --rename."
            )
        if not self._target.cluster.keeps_times(there.name):
            raise MisconfiguredTopicError(
                f"{where} has message.timestamp.type=LogAppendTime, and copies keep timestamps. "
                "Set it to CreateTime, or use another --rename."
            )
        tps = [TopicPartition(there.name, number) for number in range(there.partitions)]
        begins = self._target.cluster.start_offsets(tps)
        ends = self._target.cluster.end_offsets(tps)
        full = next((tp for tp in tps if begins[tp] < ends[tp]), None)
        if full is not None:
            raise MisconfiguredTopicError(
                f"{where} has records that mirror {self._name} did not write (offsets "
                f"{begins[full]} to {ends[full] - 1} of {full}). Delete the topic, or use another "
                "--rename such as '{cluster}.{topic}'."
            )

    def _require_new(self, known: Mirrored | None, topic: str, target: str) -> None:
        if known is not None:
            raise MissingTopicError(
                f"topic {target} of {self._target.name} was deleted after mirror {self._name} had "
                f"copied {topic} to it. Give the mirror another --name to copy it from its "
                "beginning.",
                topics=[target],
            )

    def _create(self, topic: TopicDescription, target: str) -> None:
        cluster = self._target.cluster
        config = self._source.cluster.own_configs(topic.name) | _KEEPS_TIMES
        count = self._replication_factor
        config, refused = fitting(config, count) if count > 0 else (config, {})
        new = NewTopic(target, topic.partitions, count, config, topic.name, changelog=False)
        refused |= cluster.create_fitting(new)
        if count < 0 and "min.insync.replicas" in config:
            _, more = fitting(config, cluster.replicas(target))
            cluster.alter_config(target, dict.fromkeys(more))
            refused |= more
        self._created.add(target)
        self._log.info("topic_created", topic=target, partitions=topic.partitions, configs=config)
        if refused:
            self._log.warning("topic_configs_rejected", topic=target, reasons=refused)

    def _pair(self, topic: TopicDescription, there: TopicDescription) -> Pair:
        via = tuple(sorted(self._via.get(topic.name, ())))
        mirrored = Mirrored(self._source.id, topic.topic_id, there.name, there.topic_id, via)
        return Pair(topic.name, topic.partitions, there.max_message_bytes or MESSAGE_MAX, mirrored)


def read_table(side: Side, topic: str, *, all_segments_of: Iterable[str] = ()) -> Table:
    """Read a table to its end; all segments of the topics in `all_segments_of` are kept."""
    tp = TopicPartition(topic, 0)
    begins, ends = side.cluster.start_offsets([tp]), side.cluster.stable_offsets([tp])
    return Table.of(rows_of(side.reading, begins, ends), all_segments_of=all_segments_of)


def require_table(side: Side, name: str) -> Table:
    topic = table_of(name)
    if topic not in side.cluster.describe([topic]):
        known = sorted(n for n in side.cluster.topic_names() if is_table(n))
        raise MissingTopicError(
            f"{side.name} has no topic {topic} of a mirror with this --name (tables of mirrors: "
            f"{', '.join(known) or 'none'}). Correct --name or --to.",
            topics=[topic],
        )
    return read_table(side, topic)
