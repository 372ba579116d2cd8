"""Drop of a backfill that has begun and will not be finished.

An interrupted handover by the driver leaves only a note. An interrupted partitioned handover
leaves parts of the state and of the outputs. Because the application cannot continue from them,
its internal topics and offsets are deleted, and it restarts from the beginning of its input.
Records in its sinks stay.

    1  note that the backfill is being dropped: units that begin now fail
    2  fence the units that began before
    3  delete the internal topics and the group's offsets, if any unit was committed
    4  note that the backfill is dropped: the application may start

An interrupted drop is repeated from the beginning; topics and offsets that are already deleted are
not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.handover.coordinator import HandoverCoordinator
from headrace.spark_bridge.handover.notes import is_in_parts, marker_group, transactional_id
from headrace.spark_bridge.handover.rows import CALL_TIMEOUT_MS, make_producer
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import units_of
from headrace.spark_bridge.history.planning import is_of
from headrace.spark_bridge.plan.job import CompiledApplication, Settings
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.reset import ApplicationTopics
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.protocols import Probe, TopicPartition, no_probe
from headrace.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class DropReport:
    """Report of a dropped backfill.

    Args:
        id: of the backfill.
        restarts: whether units were written, so that the application has lost its state and
            offsets.
        deleted: the topics that were deleted.
    """

    id: str
    restarts: bool
    deleted: tuple[str, ...] = ()


def drop_backfill(
    topology: Topology,
    settings: Settings,
    *,
    id: str,  # noqa: A002 - as `backfill` calls it
) -> DropReport:
    """Drop a backfill whose handover was interrupted, so that the application can start."""
    application = CompiledApplication.of(topology, settings)
    return drop_from(HandoverTarget.live(application), application, id)


def drop_from(
    target: HandoverTarget,
    application: CompiledApplication,
    backfill_id: str,
    *,
    probe: Probe = no_probe,
) -> DropReport:
    coordinator = HandoverCoordinator(target, backfill_id, timeout_ms=CALL_TIMEOUT_MS, probe=probe)
    with cleanup_after(lambda: coordinator.producer.close(), quietly=True):
        coordinator.take_over()
        opened, head = coordinator.notes.open_head, coordinator.notes.head_of(backfill_id)
        if opened is None:
            state = "unknown" if head is None else head.state
            raise BackfillError(
                f"backfill {backfill_id} of {target.group} is not open ({state}): there is nothing "
                "to drop"
            )
        target.refuse_members()
        plan = coordinator.notes.plan_of(opened[1])
        is_partitioned = is_in_parts(opened[1])
        if opened[1].state == "open":
            coordinator.close_with("dropping")
        probe("drop_noted")
        deleted: tuple[str, ...] = ()
        restarts = is_partitioned and _is_partly_written(target, application, plan)
        if restarts:
            deleted = _delete(target, application, plan)
            probe("drop_deleted")
        coordinator.close_with("dropped")
        if plan is not None and is_partitioned:
            target.delete_group(marker_group(plan))
    return DropReport(backfill_id, restarts, deleted)


def _is_partly_written(
    target: HandoverTarget, application: CompiledApplication, plan: BackfillPlan | None
) -> bool:
    """Fence the writers of a plan, then return whether any unit was committed."""
    if plan is None:
        return True  # its notes went with the topics that an earlier drop has deleted
    names, tps = _writers(application, plan)
    for name in names:
        settings = target.producer_settings(transactional_id(plan, name), CALL_TIMEOUT_MS)
        producer = make_producer(settings)
        with cleanup_after(producer.close, quietly=True):
            producer.init()
    return bool(target.groups.committed_at(marker_group(plan), tps))


def _writers(
    application: CompiledApplication, plan: BackfillPlan
) -> tuple[Sequence[str], Sequence[TopicPartition]]:
    """Return the names of a plan's units, and the partitions of their markers."""
    if is_of(application, plan):
        units = units_of(application, plan)
        return [unit.name for unit in units], [tp for unit in units for tp in unit.inputs]
    # Another topology does not know the units: these are a superset.
    tasks = range(max(plan.partitions.values()))
    names = [f"{sub}_{d}" for sub in plan.sub_topologies for d in tasks]
    return names, [TopicPartition(t, p) for t, n in plan.partitions.items() for p in range(n)]


def _delete(
    target: HandoverTarget, application: CompiledApplication, plan: BackfillPlan | None
) -> tuple[str, ...]:
    """Delete the application's group and internal topics, and return the deleted topics."""
    topics = ApplicationTopics.of(
        list(application.plans.values()), [table.topic for table in application.global_plans]
    )
    planned = topics.leftovers(target.group, plan.partitions if plan is not None else ())
    try:
        existing = tuple(target.admin.describe([*topics.internal, *planned]))
    except AccessError as error:
        # Delete implies Describe, so Delete is the operation to grant.
        raise (error.needing("Delete") if error.right == "Describe" else error) from error
    target.admin.delete_topics(existing)
    target.admin.delete_groups([target.group])
    target.clear_topology()
    return existing
