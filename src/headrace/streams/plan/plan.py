"""What an application is on a cluster: its programs, its topics by their full names, its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from headrace.state.layout import Layout
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.handlers import Stage
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.source_rows import SourceRows, source_rows
from headrace.streams.plan.topic_plan import (
    ChangelogTopic,
    RepartitionTopic,
    SubTopologyTopics,
    changelog_config,
)
from headrace.topology.checks.key_meetings import refuse_unequal_keys
from headrace.topology.checks.loops import refuse_loops, refuse_shared_sinks
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import Program, compile_sub_topology
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.errors import TopologyError
from headrace.topology.graph.binding import bound_to_topics
from headrace.topology.graph.graph import Node, OffsetReset, SubTopology
from headrace.topology.graph.optimizer import optimize
from headrace.topology.processors.store import Store
from headrace.topology.topology import Topology

# What a task is: its name, and what it is made of.


def unknown_partitions(topic: str) -> int:
    """Say that nobody told the partition counts of topics."""
    raise LookupError(f"the partition count of {topic} is not known here")


class TaskId(NamedTuple):
    """A sub-topology and a partition, as Kafka Streams writes it: ``0_3``."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What makes a task, besides the facts that are committed.

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
    """Tells the partition count of a topic that is written to."""
    source_rows: Mapping[str, SourceRows] = field(default_factory=dict)
    """The stores whose changelogs are topics that are read."""

    @property
    def restored_from(self) -> Mapping[str, TopicPartition]:
        """The partition that each store is restored from, written by this task or read."""
        read = {s: TopicPartition(r.topic, self.id.partition) for s, r in self.source_rows.items()}
        return {**self.changelogs, **read}

    @property
    def stores(self) -> tuple[Store, ...]:
        """The sub-topology's stores."""
        return self.program.sub_topology.stores

    def layout(self, store: str) -> Layout:
        """How the rows of a store lie on disk."""
        return next(s.spec.rows for s in self.stores if s.name == store)


@dataclass(frozen=True, slots=True)
class SubPlan:
    """One sub-topology of an application.

    Args:
        topics: what the cluster must have for it.
        changelogs: the changelog topic of each logged store.
        value_serdes: the serde of each store's values.
        source_rows: the stores whose changelogs are topics that are read.
        kept_lead: the topic that the deployed version subscribes to for these tasks.
    """

    program: Program
    topics: SubTopologyTopics
    changelogs: Mapping[str, str]
    value_serdes: Mapping[str, Any]
    source_rows: Mapping[str, SourceRows] = field(default_factory=dict)
    kept_lead: str | None = None

    @property
    def id(self) -> int:
        """The sub-topology's number."""
        return self.program.sub_topology.id

    @property
    def outside(self) -> Node | None:
        """The node that writes to a table outside of Kafka, if that is what it is for."""
        return self.program.sub_topology.outside

    @property
    def restored_from(self) -> tuple[str, ...]:
        """The topics that local state is restored from."""
        return (*self.changelogs.values(), *(rows.topic for rows in self.source_rows.values()))

    @property
    def reads_own_alone(self) -> bool:
        """Whether it reads nothing but what the application itself writes."""
        return not self.topics.sources

    @property
    def sinks(self) -> frozenset[str]:
        """The topics outside of the application that it writes, as far as they are known."""
        return frozenset(self.topics.sinks)

    @property
    def chooses_topics(self) -> bool:
        """Whether a function names the topic of some of its records."""
        return any(callable(sink.topic) for sink in self.program.sub_topology.sinks)

    @property
    def offset_resets(self) -> Mapping[str, OffsetReset]:
        """Where to begin with a topic, where that does not follow from the consumer's setting."""
        # What this application writes itself is read from its beginning in any case.
        resets: dict[str, OffsetReset] = {
            topic.name: "earliest" for topic in self.topics.repartition_sources
        }
        for source in self.program.sub_topology.sources:
            if source.offset_reset is not None:
                resets.update(dict.fromkeys(source.topics, source.offset_reset))
        return resets

    def lead(self, partitions: Mapping[str, int]) -> str:
        """The subscribed topic: the group assigns it, and the other inputs follow.

        It has the most partitions, so that each input partition has a task. Of several such topics
        it is the one that the deployed version subscribes to: with another one, workers of both
        versions would own each task.
        """
        return max(self.topics.all_sources, key=lambda t: (partitions[t], t == self.kept_lead, t))

    def inputs(self, partition: int, partitions: Mapping[str, int]) -> list[TopicPartition]:
        """The input partitions of one of its tasks."""
        topics = self.topics.all_sources
        return [TopicPartition(t, partition) for t in topics if partition < partitions[t]]

    def task(
        self,
        partition: int,
        *,
        partitions_of: Callable[[str], int] = unknown_partitions,
    ) -> TaskSpec:
        """The spec of one of its tasks."""
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
    """Raise if something else than a topology was given.

    Raises:
        TopologyError: naming what was given, and what to write.
    """
    if isinstance(given, Topology):
        return
    name = getattr(given, "__name__", "the function")
    advice = "give what StreamsBuilder().build() returns"
    if isinstance(given, StreamsBuilder):
        advice = "write builder.build()"
    elif isinstance(given, Mapping):
        advice = "the topology comes before the settings: swap the two arguments"
    elif given is None:
        advice += "; a function that makes it returns None where its last line has no return"
    elif callable(given):
        advice = f"call it, if it returns one: {name}()"
    what = "None" if given is None else f"a {type(given).__name__}"
    raise TopologyError(f"a topology is needed, and {what} was given; {advice}")


def plan_application(topology: Topology, config: StreamsConfig) -> tuple[SubPlan, ...]:
    """Compile a topology and name its topics.

    Raises:
        TopologyError: the topology has nothing to read, joins keys of unequal bytes, or writes to
            a changelog or repartition topic of its own.
    """
    refuse_other_than_topology(topology)
    refuse_loops(topology.nodes)
    if not topology.sub_topologies:
        raise TopologyError("the topology reads no topic; begin with builder.stream or .table")
    options = config.compile_options
    topology = optimized(topology, config)
    refuse_shared_sinks(topology)
    refuse_unequal_keys(topology, options.default_key)
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
    _refuse_own_topics(plans, config.handlers.dead_letter_topic)
    return plans


def _refuse_lost_letters(topology: Topology, config: StreamsConfig) -> None:
    """Refuse dead letters without a topic, and a topic that nobody would ever write to.

    Raises:
        TopologyError: a step asks for dead letters, and no topic is set.
        ConfigError: one is set, and neither a handler nor a step lets records go there.
    """
    asking = [node.name for node in topology.nodes if node.answer == "dead_letter"]
    sources = [source for node in topology.nodes if (source := node.as_source) is not None]
    for source in sources:
        extractor = source.timestamps or config.default_timestamp_extractor
        if getattr(extractor, "answer", None) == "dead_letter" and not source.internal:
            asking.append(source.name)
    handlers = config.handlers
    if handlers.dead_letter_topic is None:
        if asking:
            raise TopologyError(
                f"{asking[0]} writes dead letters, and no topic for them is set; "
                "set errors.dead.letter.queue.topic.name"
            )
        return
    stages: tuple[Stage, ...] = get_args(Stage)
    if not asking and all(handlers.of(stage) == "fail" for stage in stages):
        names = ", ".join(f"{stage}.exception.handler" for stage in stages)
        raise ConfigError(
            "errors.dead.letter.queue.topic.name is set, but records are written there only where "
            f"a handler lets them go; set one of {names} to 'continue'"
        )


def _require_committed_reads(topology: Topology, config: StreamsConfig) -> None:
    """What an external sink has written is final, so it is never given what may be aborted."""
    node = next((s.outside for s in topology.sub_topologies if s.outside is not None), None)
    if node is not None and not config.reads_committed:
        raise ConfigError(
            "consumer.isolation.level is read_uncommitted, and what is read may still be aborted "
            f"when to_sink({node.name!r}) has written it; leave the setting out"
        )


def _refuse_own_topics(plans: Sequence[SubPlan], dead_letters: str | None) -> None:
    """Refuse sinks that write to a changelog or repartition topic of the same application.

    A record of somebody else in a changelog is a row of the store after the next restore, and one
    in a repartition topic is taken for one that was sent there: both are wrong without any error.

    Args:
        dead_letters: the topic of dead letters; None without one.

    Raises:
        TopologyError: a sink does.
        ConfigError: dead letters would go there.
    """
    own = _own(plans)
    for plan in plans:
        for sink in plan.program.sub_topology.sinks:
            if isinstance(sink.topic, str) and not sink.internal and sink.topic in own:
                raise TopologyError(
                    f"{sink.name} writes to topic {sink.topic!r}, which is {own[sink.topic]}: what "
                    "others write there is taken for its own; write to another topic, or give "
                    "another name to what the topic is for"
                )
    if dead_letters is not None and dead_letters in own:
        raise ConfigError(
            f"errors.dead.letter.queue.topic.name is {dead_letters!r}, which is "
            f"{own[dead_letters]}; choose another topic"
        )


def _own(plans: Sequence[SubPlan]) -> Mapping[str, str]:
    """The topics that are the application's own, and what each is for."""
    found: dict[str, str] = {}
    for plan in plans:
        for store, topic in plan.changelogs.items():
            found[topic] = f"the changelog of store {store!r} of this application"
        for one in plan.topics.repartition_sources:
            found[one.name] = "a repartition topic of this application"
    return found


def optimized(topology: Topology, config: StreamsConfig) -> Topology:
    """Apply the rewrites that the settings name; a second time changes nothing."""
    return optimize(topology, config.rewrites)


def _outputs(sub: SubTopology) -> Iterator[str]:
    """The topics outside of the application that are written under a constant name."""
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
        # Equal keys must meet in one task only where there is state for them to meet in.
        copartitioned=None if sub.stores else (),
    )
    serdes = {store.name: store.value or options.default_value for store in sub.stores}
    program = compile_sub_topology(sub, options)
    return SubPlan(program, topics, changelogs, serdes, {s.store: s for s in sources})
