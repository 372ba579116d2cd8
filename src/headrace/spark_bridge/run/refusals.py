"""Checks before Spark starts, for topologies that cannot run over history.

Most topologies can: the same program runs. A topology is rejected if it depends on the present, or
would leave state from which the live application cannot continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import CannotBackfillError, WallClockError
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.spill import SpillingState
from headrace.spark_bridge.run.task_run import (
    load_global_tables,
    partition_counter,
    task_context_of,
)
from headrace.state.log import get_logger
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import CommittedOffset
from headrace.streams.tasks.task import Task
from headrace.topology.timestamps import wallclock_timestamp
from headrace.topology.topology import Topology


def refusals(topology: Topology, application: CompiledApplication) -> Iterator[str]:
    """Yield why a topology cannot be backfilled, each with its fix."""
    default = application.config.default_timestamp_extractor
    for node in topology.nodes:
        topics: Any = node.reads_topics
        if not all(isinstance(topic, str) for topic in topics):
            yield (
                f"{node.name} reads topics by a pattern, and the topics that matched it in the "
                "past are unknown. Name the topics"
            )
        if node.external_sink is not None:
            yield (
                f"{node.name} writes to an external sink, which is not part of the handover's "
                "transaction. Backfill a topology without it, and load the table separately"
            )
    for node in topology.sources:
        if not node.internal and (node.timestamps or default) is wallclock_timestamp:
            yield (
                f"{node.name} takes timestamps from the wall clock, so all history would be of "
                "today. Use the timestamps of the records"
            )
    for plan in application.plans.values():
        for store in plan.program.sub_topology.stores:
            if not store.spec.logged and store.source_topic is None:
                yield (
                    f"store {store.name} has no changelog, so the live application would start "
                    "without its rows. Enable logging of the store"
                )


def refuse_early(topology: Topology, application: CompiledApplication) -> None:
    found = list(refusals(topology, application))
    if found:
        raise CannotBackfillError("this topology cannot be backfilled: " + "; ".join(found))


def refuse_processors(application: CompiledApplication, plan: BackfillPlan) -> None:
    """Start the processors of each sub-topology once with empty stores, and close them.

    This detects a wall-clock schedule that is set at the start before the first Spark task runs. A
    later wall-clock schedule fails in its task.
    """
    config, log = application.config, get_logger()
    for sub in application.plans.values():
        if not any(getattr(node, "spec", None) for node in sub.program.sub_topology.nodes):
            continue
        spec = sub.task(0, partitions_of=partition_counter(plan, config))
        task = Task(
            spec=spec,
            state=SpillingState([store.spec for store in spec.stores], memory_bytes=1 << 20),
            start={tp: CommittedOffset(0) for tp in sub.inputs(0, plan.partitions)},
            send=lambda *_: None,
            dropped=lambda *_: None,
            handlers=config.handlers,
            context=task_context_of(config, spec.id, plan.now_ms),
            global_views=load_global_tables(application, plan, None, log),
            now_ms=lambda: plan.now_ms,
        )
        with cleanup_after(task.close, task.state.close):
            try:
                task.begin()
            except WallClockError as error:
                raise CannotBackfillError(f"this topology cannot be backfilled: {error}") from error
            except StreamsError as error:
                raise CannotBackfillError(f"a processor cannot start: {error}") from error
