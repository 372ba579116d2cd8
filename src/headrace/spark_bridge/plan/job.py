"""Job of a stage, as executors receive it: topology, settings and plan as bytes.

Executors compile the topology, so functions are shipped and compiled programs are not. Functions
of an importable module are pickled by name, so executors must be able to import the module; other
functions, including functions of the main script, are pickled by value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.spark_bridge.errors import CannotBackfillError, SparkMissingError
from headrace.spark_bridge.plan import by_value
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.global_plan import GlobalPlan, plan_global_tables
from headrace.streams.plan.plan import SubPlan, TaskId, optimized, plan_application
from headrace.topology.graph.combinable import reaches_time
from headrace.topology.graph.optimizer import COMBINE, combinable, combining
from headrace.topology.topology import Topology

STATE_IN_MEMORY_BYTES = 512 << 20
"""Size of a task's state in memory before it moves to disk."""

Settings = Mapping[str, object] | StreamsConfig


def config_of(settings: Settings) -> StreamsConfig:
    return settings if isinstance(settings, StreamsConfig) else StreamsConfig.parse(settings)


@dataclass(frozen=True, slots=True)
class CompiledApplication:
    """Topology compiled for history.

    Args:
        config: the settings; caches are off if an operator downstream of a store depends on stream
            time, because it would receive all changes at the end.
        plans: of its sub-topologies, by id.
    """

    config: StreamsConfig
    plans: Mapping[int, SubPlan]
    global_plans: tuple[GlobalPlan, ...]

    @classmethod
    def of(
        cls, topology: Topology, settings: Settings, combined: Collection[str] = ()
    ) -> CompiledApplication:
        """Compile a topology; the repartition topics `combined` receive partial aggregates."""
        config = config_of(settings)
        # The caller decides about pre-aggregation.
        rewrites = tuple(name for name in config.topology_optimization if name != COMBINE)
        config = replace(config, topology_optimization=rewrites)
        topology = optimized(topology, config)
        timed = reaches_time(topology)
        if any(node.name in timed and node.stores for node in topology.nodes):
            config = replace(config, statestore_cache_max_bytes=0)
        plans = plan_application(with_partials(topology, combined), config)
        tables = plan_global_tables(topology, config)
        return cls(config, {plan.id: plan for plan in plans}, tables)

    def writes_to_itself(self, stage: Sequence[int]) -> bool:
        """Return whether a stage reads its own output, so that it runs in a single Spark task."""
        topics = [self.plans[sub].topics for sub in stage]
        written = {topic for one in topics for topic in one.repartition_sinks}
        return any(topic in written for one in topics for topic in one.all_sources)

    def tasks(self, stage: Sequence[int], plan: BackfillPlan) -> list[TaskId]:
        return [
            TaskId(sub, partition)
            for sub in stage
            for partition in range(
                max(plan.partitions[topic] for topic in self.plans[sub].topics.all_sources)
            )
        ]

    @property
    def repartitions(self) -> frozenset[str]:
        plans = self.plans.values()
        return frozenset(t.name for plan in plans for t in plan.topics.repartition_sources)


def combined_topics(topology: Topology, config: StreamsConfig, order: str) -> frozenset[str]:
    """Return the repartition topics that receive partial aggregates, as named in the topology.

    Compared with a backfill record by record, an aggregation forwards fewer intermediate updates,
    as with a cache; the last update is the same. "auto" does as the live application, "combine" as
    the live application would with caches.
    """
    if order == "exact":
        return frozenset()
    if order == "combine":
        config = replace(
            config,
            topology_optimization=(*config.topology_optimization, COMBINE),
            statestore_cache_max_bytes=config.statestore_cache_max_bytes or 1,
        )
    sinks = optimized(topology, config).sinks
    return frozenset(str(sink.topic) for sink in sinks if sink.combines is not None)


def with_partials(topology: Topology, topics: Collection[str]) -> Topology:
    """Return a topology with pre-aggregation of the records for these repartition topics."""
    aggregations = combinable(topology) if topics else {}
    return combining(topology, {topic: aggregations[topic] for topic in topics})


@dataclass(frozen=True, slots=True)
class Archived:
    """Part of an input partition that comes from an archive.

    Args:
        first: the lowest offset, or the first number of records without offsets.
        largest: the largest timestamp.
    """

    first: int
    largest: int


@dataclass(frozen=True, slots=True)
class StageJob:
    """Stage of a backfill, to be sent to executors.

    Args:
        application: topology and settings, pickled.
        plan: of the backfill, as text.
        stage: the sub-topologies that run together.
        combined: the repartition topics that receive partial aggregates, by their names in the
            topology.
        archived: the input partitions that begin with an archive.
        with_sinks: keep the records for topics outside of the application.
        memory_bytes: size of a task's state in memory before it moves to disk.
    """

    application: bytes
    plan: str
    stage: tuple[int, ...]
    combined: frozenset[str] = frozenset()
    archived: Mapping[TopicPartition, Archived] = field(default_factory=dict)
    with_sinks: bool = True
    memory_bytes: int = STATE_IN_MEMORY_BYTES

    def open(self) -> tuple[CompiledApplication, BackfillPlan]:
        topology, settings = by_value.loads(self.application)
        application = CompiledApplication.of(topology, settings, self.combined)
        return application, BackfillPlan.from_text(self.plan)


def pack_application(topology: Topology, settings: Settings) -> bytes:
    """Pickle a topology with its settings, functions and lambdas included."""
    try:
        return by_value.dumps((topology, settings))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise CannotBackfillError(_unpicklable(error)) from error
        raise SparkMissingError(
            'pyspark is not installed. Run: pip install "headrace[spark]"'
        ) from error
    except Exception as error:
        raise CannotBackfillError(_unpicklable(error)) from error


def _unpicklable(error: Exception) -> str:
    return (
        f"the topology or a setting cannot be sent to executors ({type(error).__name__}: {error}). "
        "If a function or a serde refers to a lock, a connection or an open file, create that when "
        "the function is called"
    )
