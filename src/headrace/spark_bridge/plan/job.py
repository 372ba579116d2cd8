"""What an executor needs to run the tasks of a stage: topology, settings and plan, as bytes.

The topology is compiled where it runs: functions travel, compiled programs need not. Functions of
an importable module travel by their names, so executors must be able to import it; others, and
those of the main script, travel by value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace.spark_bridge.errors import CannotBackfillError, SparkMissingError
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.program import by_value
from headrace.spark_bridge.program.combine import with_partials
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.global_plan import GlobalPlan, plan_global_tables
from headrace.streams.plan.plan import SubPlan, optimized, plan_application
from headrace.topology.graph.combinable import reaches_time
from headrace.topology.graph.optimizer import COMBINE
from headrace.topology.topology import Topology

STATE_IN_MEMORY_BYTES = 512 << 20
"""How much state a task keeps in memory before it moves to disk."""

Settings = Mapping[str, object] | StreamsConfig


@dataclass(frozen=True, slots=True)
class Application:
    """A topology that is compiled for history.

    Args:
        config: its settings, as far as history goes: without caches where a step behind one
            depends on stream time, as that step would see everything at the end.
        plans: of its sub-topologies, by id.
    """

    config: StreamsConfig
    plans: Mapping[int, SubPlan]
    global_plans: tuple[GlobalPlan, ...]

    @classmethod
    def of(
        cls, topology: Topology, settings: Settings, combined: Collection[str] = ()
    ) -> Application:
        """Compile a topology.

        Args:
            combined: the repartition topics that take partial results.

        Raises:
            ConfigError: the settings are wrong.
            TopologyError: the topology cannot run.
        """
        config = settings if isinstance(settings, StreamsConfig) else StreamsConfig.parse(settings)
        # What is combined here, and how, is the caller's to say.
        rewrites = tuple(name for name in config.topology_optimization if name != COMBINE)
        config = replace(config, topology_optimization=rewrites)
        topology = optimized(topology, config)
        timed = reaches_time(topology)
        if any(node.name in timed and node.stores for node in topology.nodes):
            config = replace(config, statestore_cache_max_bytes=0)
        plans = plan_application(with_partials(topology, combined), config)
        tables = plan_global_tables(topology, config)
        return cls(config, {plan.id: plan for plan in plans}, tables)

    @property
    def repartitions(self) -> frozenset[str]:
        """The full names of the repartition topics."""
        plans = self.plans.values()
        return frozenset(t.name for plan in plans for t in plan.topics.repartition_sources)


@dataclass(frozen=True, slots=True)
class Archived:
    """What is known of the part of an input partition that comes from an archive.

    Args:
        first: the lowest offset, or the number that stands for one.
        largest: the largest timestamp.
    """

    first: int
    largest: int


@dataclass(frozen=True, slots=True)
class Job:
    """One stage of a backfill, to be sent to executors.

    Args:
        application: topology and settings, pickled.
        plan: of the backfill, as text.
        stage: the sub-topologies that run together.
        combined: the repartition topics that take partial results, as the topology names them.
        archived: the input partitions that begin with an archive.
        with_sinks: whether records for topics outside of the application are kept.
        memory_bytes: how much state a task keeps in memory.
    """

    application: bytes
    plan: str
    stage: tuple[int, ...]
    combined: frozenset[str] = frozenset()
    archived: Mapping[TopicPartition, Archived] = field(default_factory=dict)
    with_sinks: bool = True
    memory_bytes: int = STATE_IN_MEMORY_BYTES

    def open(self) -> tuple[Application, BackfillPlan]:
        """Compile the application, and read the plan."""
        topology, settings = by_value.loads(self.application)
        application = Application.of(topology, settings, self.combined)
        return application, BackfillPlan.from_text(self.plan)


def pack_application(topology: Topology, settings: Settings) -> bytes:
    """Pickle a topology with its settings, functions and lambdas included.

    Raises:
        CannotBackfillError: something in it cannot be sent to another process.
        SparkMissingError: pyspark is, which knows how to.
    """
    try:
        return by_value.dumps((topology, settings))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise CannotBackfillError(_refused(error)) from error
        raise SparkMissingError(
            'this needs pyspark, which is not installed; run: pip install "headrace[spark]"'
        ) from error
    except Exception as error:
        raise CannotBackfillError(_refused(error)) from error


def _refused(error: Exception) -> str:
    return (
        f"the topology or a setting cannot be sent to executors: {type(error).__name__}: "
        f"{error}; a function or a serde holds on to a lock, a connection or an open file: "
        "make it where it is used"
    )
