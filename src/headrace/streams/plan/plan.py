"""Plan of an application on a cluster: its programs, its topics by their full names, its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from headrace.state.layout import Layout
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.handlers import Stage
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition
from headrace.streams.plan.topic_plan import (
    ChangelogTopic,
    RepartitionTopic,
    SubTopologyTopics,
    changelog_config,
)
from headrace.topology.checks.key_mismatches import require_matching_keys
from headrace.topology.checks.loops import refuse_loops, refuse_shared_sinks
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import Program, compile_sub_topology
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.errors import TopologyError
from headrace.topology.graph.binding import bound_to_topics
from headrace.topology.graph.graph import AnySerde, Node, OffsetReset, SubTopology
from headrace.topology.graph.optimizer import optimize
from headrace.topology.processors.store import Store
from headrace.topology.topology import Topology

# Restore of a table's rows from the source topic of the table.
#
# Records are decoded and encoded by the same serdes as during processing, so the restored rows have
# the same bytes: a key's bytes in the topic can differ from its bytes in the store.


Changes = list[tuple[bytes, "bytes | None", int]]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Conversion of a source topic's records into rows of a store.

    Args:
        read: the key serde and value serde of the source.
        kept: the key serde and value serde of the store.
        skips_undecodable: whether a handler skips records that cannot be decoded.
    """

    store: str
    topic: str
    read: tuple[AnySerde, AnySerde]
    kept: tuple[AnySerde, AnySerde]
    skips_undecodable: bool

    def changes(self, records: Iterable[ReceivedMessage]) -> Changes:
        """Raise ValueError if a record cannot be decoded that was decoded before."""
        changes: Changes = []
        for record in records:
            key, timestamp = record.key(), record.timestamp()[1]
            if key is None or timestamp < 0:
                continue
            try:
                row = self._row(key, record.value())
            except Exception as error:
                if self.skips_undecodable:
                    continue
                raise ValueError(
                    f"{record.topic()}-{record.partition()} has a record at offset "
                    f"{record.offset()} that was processed before and cannot be read again to "
                    f"restore store {self.store!r}: {error}; revert the change of the serdes, or "
                    "reset the application"
                ) from error
            changes.append((*row, timestamp))
        return changes

    def _row(self, key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
        (read_key, read_value), (keep_key, keep_value) = self.read, self.kept
        decoded = read_key.deserialize(key)
        again = getattr(keep_key, "reserialize", None) if read_key is keep_key else None
        row_key = keep_key.serialize(decoded) if again is None else again(decoded, key)
        if value is None:
            return row_key, None
        return row_key, keep_value.serialize(read_value.deserialize(value))


def source_rows(store: Store, sub: SubTopology, options: CompileOptions) -> SourceRows:
    assert store.source_topic is not None, store
    source = next(s for s in sub.sources if store.source_topic in s.topics)
    return SourceRows(
        store.name,
        store.source_topic,
        (source.key or options.default_key, source.value or options.default_value),
        (store.key or options.default_key, store.value or options.default_value),
        options.skips_undecodable,
    )


# Identity and specification of a task.


def unknown_partitions(topic: str) -> int:
    raise LookupError(f"the partition count of {topic} is not known here")


class TaskId(NamedTuple):
    """Sub-topology and partition, formatted as in Kafka Streams: ``0_3``."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Specification of a task, without its committed offsets and numbers.

    Args:
        changelogs: the changelog partition of each logged store.
        value_serdes: the serde of each store's values.
        internal_topics: inputs that this application writes itself.
    """

    id: TaskId
    program: Program
    changelogs: Mapping[str, TopicPartition]
    value_serdes: Mapping[str, Any]
    internal_topics: frozenset[str] = frozenset()

    partitions_of: Callable[[str], int] = unknown_partitions
    """Returns the partition count of an output topic."""
    source_rows: Mapping[str, SourceRows] = field(default_factory=dict)
    """The stores that are restored from a source topic."""

    @property
    def restored_from(self) -> Mapping[str, TopicPartition]:
        """The partition that each store is restored from: its changelog's or its source topic's."""
        read = {s: TopicPartition(r.topic, self.id.partition) for s, r in self.source_rows.items()}
        return {**self.changelogs, **read}

    @property
    def stores(self) -> tuple[Store, ...]:
        """The sub-topology's stores."""
        return self.program.sub_topology.stores

    def layout(self, store: str) -> Layout:
        """Return the format of a store's rows on disk."""
        return next(s.spec.rows for s in self.stores if s.name == store)


@dataclass(frozen=True, slots=True)
class SubPlan:
    """Sub-topology of an application with its topics and stores.

    Args:
        topics: the topics that must exist on the cluster.
        changelogs: the changelog topic of each logged store.
        value_serdes: the serde of each store's values.
        source_rows: the stores that are restored from a source topic.
        deployed_topic: the topic that the deployed version subscribes to for these tasks.
    """

    program: Program
    topics: SubTopologyTopics
    changelogs: Mapping[str, str]
    value_serdes: Mapping[str, Any]
    source_rows: Mapping[str, SourceRows] = field(default_factory=dict)
    deployed_topic: str | None = None

    @property
    def id(self) -> int:
        """The sub-topology's number."""
        return self.program.sub_topology.id

    @property
    def sink_node(self) -> Node | None:
        """The node that writes to an external sink, or None."""
        return self.program.sub_topology.sink_node

    @property
    def restored_from(self) -> tuple[str, ...]:
        """The topics that local state is restored from."""
        return (*self.changelogs.values(), *(rows.topic for rows in self.source_rows.values()))

    @property
    def reads_own_alone(self) -> bool:
        """Whether it reads repartition topics only."""
        return not self.topics.sources

    @property
    def sinks(self) -> frozenset[str]:
        """The external topics that it writes under a constant name."""
        return frozenset(self.topics.sinks)

    @property
    def chooses_topics(self) -> bool:
        """Whether a function names the topic of some of its records."""
        return any(callable(sink.topic) for sink in self.program.sub_topology.sinks)

    @property
    def offset_resets(self) -> Mapping[str, OffsetReset]:
        """The start position of each topic that does not follow the consumer's setting."""
        # Repartition topics are always read from their beginning.
        resets: dict[str, OffsetReset] = {
            topic.name: "earliest" for topic in self.topics.repartition_sources
        }
        for source in self.program.sub_topology.sources:
            if source.offset_reset is not None:
                resets.update(dict.fromkeys(source.topics, source.offset_reset))
        return resets

    def subscribed_topic(self, partitions: Mapping[str, int]) -> str:
        """Return the subscribed topic, which the group assigns; the other inputs follow.

        It has the most partitions, so that each input partition has a task. If several topics have
        the same count, the subscribed topic of the deployed version is preferred. With another
        topic, workers of both versions would own each task.
        """
        return max(
            self.topics.all_sources, key=lambda t: (partitions[t], t == self.deployed_topic, t)
        )

    def inputs(self, partition: int, partitions: Mapping[str, int]) -> list[TopicPartition]:
        """Return the input partitions of a task."""
        topics = self.topics.all_sources
        return [TopicPartition(t, partition) for t in topics if partition < partitions[t]]

    def task(
        self,
        partition: int,
        *,
        partitions_of: Callable[[str], int] = unknown_partitions,
    ) -> TaskSpec:
        """Return the specification of a task."""
        return TaskSpec(
            id=TaskId(self.id, partition),
            program=self.program,
            changelogs={s: TopicPartition(t, partition) for s, t in self.changelogs.items()},
            value_serdes=self.value_serdes,
            internal_topics=frozenset(t.name for t in self.topics.repartition_sources),
            partitions_of=partitions_of,
            source_rows=self.source_rows,
        )


def refuse_other_than_topology(given: object) -> None:
    if isinstance(given, Topology):
        return
    name = getattr(given, "__name__", "the function")
    advice = "pass the result of StreamsBuilder().build()"
    if isinstance(given, StreamsBuilder):
        advice = "write builder.build()"
    elif isinstance(given, Mapping):
        advice = "the topology comes before the settings: swap the two arguments"
    elif given is None:
        advice += "; a function that builds it returns None if it ends without return"
    elif callable(given):
        advice = f"call it, if it returns a topology: {name}()"
    what = "None" if given is None else f"a {type(given).__name__}"
    raise TopologyError(f"a topology is required, not {what}; {advice}")


def plan_application(topology: Topology, config: StreamsConfig) -> tuple[SubPlan, ...]:
    """Compile a topology and name its topics."""
    refuse_other_than_topology(topology)
    refuse_loops(topology.nodes)
    if not topology.sub_topologies:
        raise TopologyError("the topology reads no topic; begin with builder.stream or .table")
    options = config.compile_options
    topology = optimized(topology, config)
    refuse_shared_sinks(topology)
    require_matching_keys(topology, options.default_key)
    _refuse_lost_letters(topology, config)
    topology = bound_to_topics(
        topology,
        application_id=options.application_id,
        default_key=options.default_key,
        default_value=options.default_value,
    )
    _require_committed_reads(topology, config)
    more_ms = config.windowstore_changelog_additional_retention_ms
    plans = tuple(_sub_plan(sub, options, more_ms) for sub in topology.sub_topologies)
    _refuse_own_topics(plans)
    read = {topic for node in topology.nodes for topic in node.reads_topics if not node.internal}
    _refuse_letters_there(config.handlers.dead_letter_topic, read, _own(plans))
    return plans


def _refuse_lost_letters(topology: Topology, config: StreamsConfig) -> None:
    """Refuse dead letters without a topic, and a dead-letter topic that is never written to."""
    asking = [node.name for node in topology.nodes if node.failure_reaction == "dead_letter"]
    sources = [source for node in topology.nodes if (source := node.as_source) is not None]
    for source in sources:
        extractor = source.timestamps or config.default_timestamp_extractor
        if getattr(extractor, "failure_reaction", None) == "dead_letter" and not source.internal:
            asking.append(source.name)
    handlers = config.handlers
    if handlers.dead_letter_topic is None:
        if asking:
            raise TopologyError(
                f"{asking[0]} writes dead letters, but no topic for them is set; set "
                "errors.dead.letter.queue.topic.name"
            )
        return
    stages: tuple[Stage, ...] = get_args(Stage)
    if not asking and all(handlers.of(stage) == "fail" for stage in stages):
        names = ", ".join(f"{stage}.exception.handler" for stage in stages)
        raise ConfigError(
            "errors.dead.letter.queue.topic.name is set, but records are written there only if a "
            f"handler skips them; set one of {names} to 'continue'"
        )


def _require_committed_reads(topology: Topology, config: StreamsConfig) -> None:
    """Refuse external sinks with read_uncommitted, because their writes cannot be rolled back."""
    node = next((s.sink_node for s in topology.sub_topologies if s.sink_node is not None), None)
    if node is not None and not config.reads_committed:
        raise ConfigError(
            "consumer.isolation.level is read_uncommitted, and records may still be aborted after "
            f"to_sink({node.name!r}) has written them; remove the setting"
        )


def _refuse_own_topics(plans: Sequence[SubPlan]) -> None:
    """Refuse sinks that write to a changelog or repartition topic of the same application.

    A foreign record there becomes a row at the next restore, or is processed, without an error.
    """
    own_topics = _own(plans)
    for plan in plans:
        for sink in plan.program.sub_topology.sinks:
            if isinstance(sink.topic, str) and not sink.internal and sink.topic in own_topics:
                raise TopologyError(
                    f"{sink.name} writes to topic {sink.topic!r}, which is "
                    f"{own_topics[sink.topic]}: records of other writers would be treated "
                    "as its own; write to another topic, or rename the store or operator that "
                    "owns the topic"
                )


def _refuse_letters_there(
    dead_letters: str | None, read: AbstractSet[str], own_topics: Mapping[str, str]
) -> None:
    """Refuse a dead-letter topic that the application reads, or that it owns."""
    if dead_letters is None:
        return
    if dead_letters in own_topics:
        why = f"which is {own_topics[dead_letters]}"
    elif dead_letters in read:
        why = "which the application reads, so a letter that fails creates letters endlessly"
    else:
        return
    raise ConfigError(
        f"errors.dead.letter.queue.topic.name is {dead_letters!r}, {why}; choose another topic"
    )


def _own(plans: Sequence[SubPlan]) -> Mapping[str, str]:
    """Return the application's internal topics, each with a description of its purpose."""
    names: dict[str, str] = {}
    for plan in plans:
        for store, topic in plan.changelogs.items():
            names[topic] = f"the changelog of store {store!r} of this application"
        for one in plan.topics.repartition_sources:
            names[one.name] = "a repartition topic of this application"
    return names


def optimized(topology: Topology, config: StreamsConfig) -> Topology:
    """Apply the optimizations that the settings name; applying them again changes nothing."""
    return optimize(topology, config.rewrites)


def _outputs(sub: SubTopology) -> Iterator[str]:
    for sink in sub.sinks:
        if isinstance(sink.topic, str) and not sink.internal:
            yield sink.topic


def _sub_plan(sub: SubTopology, options: CompileOptions, additional_retention_ms: int) -> SubPlan:
    prefix = f"{options.application_id}-"
    logged = [s for s in sub.stores if s.spec.logged and s.source_topic is None]
    sources = [source_rows(store, sub, options) for store in sub.stores if store.source_topic]
    changelogs = {store.name: f"{prefix}{store.name}-changelog" for store in logged}
    repartitions = [
        RepartitionTopic(f"{prefix}{topic}", source.partitions)
        for source in sub.sources
        if source.internal
        for topic in source.topics
    ]
    topics = SubTopologyTopics(
        id=sub.id,
        sources=tuple(t for source in sub.sources if not source.internal for t in source.topics),
        repartition_sources=tuple(repartitions),
        repartition_sinks=tuple(f"{prefix}{sink.topic}" for sink in sub.sinks if sink.internal),
        changelogs=tuple(
            ChangelogTopic(
                changelogs[store.name], changelog_config(store.spec, additional_retention_ms)
            )
            for store in logged
        ),
        reused=tuple(rows.topic for rows in sources),
        sinks=tuple(dict.fromkeys(_outputs(sub))),
        # Co-partitioning is required only if the sub-topology has state.
        copartitioned=None if sub.stores else (),
    )
    serdes = {store.name: store.value or options.default_value for store in sub.stores}
    program = compile_sub_topology(sub, options)
    return SubPlan(program, topics, changelogs, serdes, {s.store: s for s in sources})
