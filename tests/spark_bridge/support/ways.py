"""The ways of a hand-over, asked for in one call."""

from __future__ import annotations

from typing import Any

from headrace.spark_bridge.handover import handover
from headrace.spark_bridge.handover import handover as driver
from headrace.spark_bridge.handover import handover as partitioned
from headrace.spark_bridge.handover.handover import BackfillState, HandoverReport, HandoverRequest
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import HandoverUnit, RowSummary
from headrace.spark_bridge.handover.worker import UnitProbe, WriteUnit, no_unit_probe
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan


def _request(
    application: CompiledApplication, target: HandoverTarget | None = None, **asked: Any
) -> HandoverRequest:
    return HandoverRequest(target=target or HandoverTarget.live(application), **asked)


def hand_over_by_driver(
    results: Any,
    application: CompiledApplication,
    *,
    summary: RowSummary | None = None,
    **asked: Any,
) -> HandoverReport:
    return driver.hand_over_by_driver(
        results, _request(application, **asked), summary or RowSummary.of(results)
    )


def hand_over_partitioned(
    results: Any,
    application: CompiledApplication,
    *,
    summary: RowSummary | None = None,
    **asked: Any,
) -> HandoverReport:
    return partitioned.hand_over_partitioned(
        results, _request(application, **asked), summary or RowSummary.of(results)
    )


def finish_partitioned(
    application: CompiledApplication, plan: BackfillPlan, **asked: Any
) -> HandoverReport:
    return partitioned.finish_partitioned(plan, _request(application, **asked))


def left_to_write(
    application: CompiledApplication, plan: BackfillPlan, *, target: HandoverTarget | None = None
) -> tuple[HandoverUnit, ...]:
    return partitioned.left_to_write(plan, target or HandoverTarget.live(application))


def check_target(application: CompiledApplication, plan: BackfillPlan, **asked: Any) -> None:
    handover.check_target(_request(application, **asked), plan)


def find(
    application: CompiledApplication, backfill_id: str, *, target: HandoverTarget | None = None
) -> BackfillState:
    return handover.find_earlier_attempt(backfill_id, target or HandoverTarget.live(application))


def unit_writer(
    target: HandoverTarget,
    head: Any,
    plan: BackfillPlan,
    units: tuple[HandoverUnit, ...],
    *,
    reset: bool,
    probe: UnitProbe = no_unit_probe,
) -> WriteUnit:
    request = HandoverRequest(target=target, reset=reset, unit_probe=probe)
    return partitioned.unit_writer(request, head, plan, units)
