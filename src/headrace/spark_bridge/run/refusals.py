"""Checks before Spark starts, for topologies that cannot run over history.

Most topologies can: the same program runs. A topology is rejected if it depends on the present, or
would leave state from which the live application cannot continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import CannotBackfillError, WallClockError
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.spill import SpillingState
from headrace.spark_bridge.run.history_tables import no_rows
from headrace.spark_bridge.run.task_facts import facts_of
from headrace.spark_bridge.run.task_run import partition_counter
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import CommittedOffset
from headrace.streams.plan.plan import SubPlan
from headrace.streams.tasks.task import Task
from headrace.topology.timestamps import wallclock_timestamp
from headrace.topology.topology import Topology


def refusals(topology: Topology, application: CompiledApplication) -> list[str]:
    return [
        *_unknown_nodes(topology),
        *_clocks(topology, application),
        *_tables_outside(topology),
        *_lost_state(application),
    ]


def refuse_early(topology: Topology, application: CompiledApplication) -> None:
    found = refusals(topology, application)
    if found:
        raise CannotBackfillError("this topology cannot be backfilled: " + "; ".join(found))


def _unknown_nodes(topology: Topology) -> Iterator[str]:
    for node in topology.nodes:
        topics: Any = node.reads_topics
        if not all(isinstance(topic, str) for topic in topics):
            yield (
                f"{node.name} reads topics by a pattern, and which topics there were in the past "
                "is not known: name them"
            )


def _clocks(topology: Topology, application: CompiledApplication) -> Iterator[str]:
    default = application.config.default_timestamp_extractor
    for node in topology.sources:
        if node.internal:
            continue
        if (node.timestamps or default) is wallclock_timestamp:
            yield (
                f"{node.name} takes the wall clock for the time of its records, and all history "
                "would have happened now: take the records' own time"
            )


def _tables_outside(topology: Topology) -> Iterator[str]:
    for node in topology.nodes:
        if node.writes_outside is not None:
            yield (
                f"{node.name} writes to a table outside of Kafka, which a hand-over cannot make "
                "visible with the rest: backfill a topology without it, and load the table apart"
            )


def _lost_state(application: CompiledApplication) -> Iterator[str]:
    for plan in application.plans.values():
        for store in plan.program.sub_topology.stores:
            if not store.spec.logged and store.source_topic is None:
                yield (
                    f"store {store.name} has no changelog, so the live application would begin "
                    "without what history put there: let it be logged"
                )


def refuse_reused(archived: Iterable[str], application: CompiledApplication) -> None:
    """Raise for a table's changelog: the live application restores it without the archived rows."""
    archived = set(archived)
    for plan in application.plans.values():
        for store in plan.program.sub_topology.stores:
            if store.source_topic in archived:
                raise CannotBackfillError(
                    f"{store.source_topic} is the changelog of table {store.name}, too, so the "
                    "live application would not have what only its archive has: leave the archive "
                    "out if the topic still has all rows, or take reuse.ktable.source.topics out "
                    "of topology.optimization"
                )


def refuse_processors(application: CompiledApplication, plan: BackfillPlan) -> None:
    """Start the processors of each sub-topology once with empty stores, and close them.

    This detects a wall-clock schedule that is set at the start before the first Spark task runs. A
    later wall-clock schedule fails in its task.
    """
    for sub in application.plans.values():
        if not any(getattr(node, "spec", None) for node in sub.program.sub_topology.nodes):
            continue
        task = _first_task(sub, application, plan)
        with and_then(task.close, task.state.close):
            try:
                task.begin()
            except WallClockError as error:
                raise CannotBackfillError(f"this topology cannot be backfilled: {error}") from error
            except StreamsError as error:
                raise CannotBackfillError(f"a processor cannot be started: {error}") from error


def _first_task(sub: SubPlan, application: CompiledApplication, plan: BackfillPlan) -> Task:
    config = application.config
    spec = sub.task(0, partitions_of=partition_counter(plan, config))
    return Task(
        spec=spec,
        state=SpillingState([store.spec for store in spec.stores], memory_bytes=1 << 20),
        start={tp: CommittedOffset(0) for tp in sub.inputs(0, plan.partitions)},
        send=lambda *_: None,
        dropped=lambda *_: None,
        handlers=config.handlers,
        facts=facts_of(config, spec.id, plan.now_ms),
        global_views=no_rows(application),
        now_ms=lambda: plan.now_ms,
    )
