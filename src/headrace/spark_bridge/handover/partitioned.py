"""Hands a backfill over in parts: a transaction for each unit, from the executors, then the flip.

Kafka commits nothing of several producers at once, so the parts are visible before the whole is:
the application is kept from starting meanwhile (`headrace.streams.upgrade.backfill_gate`), but who
reads its sinks sees them fill up part by part. State and offsets become the application's with the
flip: one transaction that commits its offsets, and that the plan is done.

A driver that dies leaves the plan open. The next one with the same id reads it back, finds which
parts are written, and does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.handover.clients import CALL_TIMEOUT_MS
from headrace.spark_bridge.handover.driver import live_offsets, prepare_topics_for
from headrace.spark_bridge.handover.lead import Lead, fenced
from headrace.spark_bridge.handover.notes import DEADLINE, marker_group
from headrace.spark_bridge.handover.report import HandOverReport
from headrace.spark_bridge.handover.request import Request
from headrace.spark_bridge.handover.target import Target
from headrace.spark_bridge.handover.units import RowFacts, Unit, UnitCounts, units_of
from headrace.spark_bridge.handover.worker import REPORT_DDL, WriteUnit
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import consumer_opener
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.stage_errors import denied
from headrace.streams.errors import StreamsError
from headrace.streams.seams.clients import Offsets, TopicPartition
from headrace.streams.upgrade.backfill_gate import BackfillNote
from headrace.streams.worker_errors import AbortableError, OutcomeUnknownError, ProducerFencedError


def hand_over_partitioned(
    results: Results, request: Request, facts: RowFacts | None = None
) -> HandOverReport:
    """Write each unit in a transaction of its own, then the offsets.

    All that is not written yet must be among the results.

    Raises:
        CannotBackfillError: the application or its topics are not ready for it; nothing is visible.
        BackfillError: it did not come to its end; the message says how to go on.
    """
    begun = time.monotonic()
    facts = facts or RowFacts.of(results)
    target, plan = request.target, results.plan
    units = units_of(target.application, plan)
    prepare_topics_for(request, facts)
    lead = Lead(target, plan.id, timeout_ms=CALL_TIMEOUT_MS, probe=request.probe)
    counts = UnitCounts()
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            if lead.open(plan, request.terms("partitioned")):
                lead.commit({marker_group(plan): _markers(target, plan, units)})
            missing = _missing(target, plan, units)
            if missing:
                opened = lead.notes.open_head
                assert opened is not None, "the plan is not open"
                write = unit_writer(request, opened, plan, units)
                counts = _run(results, write)
            request.probe("handover_written")
            _flip(lead, request, plan, units)
    except ProducerFencedError as error:
        raise fenced(plan.id, error) from error
    found = len(units) - len(missing)
    return HandOverReport("partitioned", counts, len(units), found, time.monotonic() - begun)


def left_to_write(plan: BackfillPlan, target: Target) -> tuple[Unit, ...]:
    """The units of a plan that no attempt has committed yet."""
    return _missing(target, plan, units_of(target.application, plan))


def finish_partitioned(plan: BackfillPlan, request: Request) -> HandOverReport:
    """Commit the offsets of a plan whose units are all written; Spark has nothing to do for it.

    Raises:
        BackfillError: units are missing.
    """
    begun = time.monotonic()
    units = units_of(request.target.application, plan)
    lead = Lead(request.target, plan.id, timeout_ms=CALL_TIMEOUT_MS, probe=request.probe)
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            lead.open(plan, request.terms("partitioned"))
            _flip(lead, request, plan, units)
    except ProducerFencedError as error:
        raise fenced(plan.id, error) from error
    return HandOverReport(
        "partitioned", UnitCounts(), len(units), len(units), time.monotonic() - begun
    )


def _markers(target: Target, plan: BackfillPlan, units: Sequence[Unit]) -> Offsets:
    """What the units that are written have left, beside it what their tasks know of the inputs."""
    places = [place for unit in units for place in unit.inputs]
    return target.groups.committed_at(marker_group(plan), places)


def _missing(target: Target, plan: BackfillPlan, units: Sequence[Unit]) -> tuple[Unit, ...]:
    found = _markers(target, plan, units)
    return tuple(unit for unit in units if not found.keys() >= set(unit.inputs))


def unit_writer(
    request: Request,
    head: tuple[TopicPartition, BackfillNote],
    plan: BackfillPlan,
    units: tuple[Unit, ...],
) -> WriteUnit:
    """Make what executors call; `head` is the first note of the plan, and where it is."""
    target = request.target
    timeout_ms = target.transaction_timeout_ms()
    return WriteUnit(
        plan=plan.to_text(),
        units=units,
        head=head[0],
        digest=head[1].digest,
        clients=target.config.admin_config(),
        producer=target.producer_settings("", timeout_ms),
        consumer=consumer_opener(target.config) if request.reset else None,
        with_sinks=request.with_sinks,
        now_ms=target.now_ms(),
        timeout_s=timeout_ms / 1000,
        probe=request.unit_probe,
    )


def _run(results: Results, write: WriteUnit) -> UnitCounts:
    """Have Spark write what is not written."""
    try:
        rows = results.run(write, REPORT_DDL)
    except StreamsError:
        raise
    except Exception as error:
        what = f"a part of backfill {results.plan.id} could not be written"
        way_out = (
            "; the plan stays open, and so the application does not start: correct the cause and "
            f"run the backfill again with the same id, or drop it, {DEADLINE}"
        )
        lacking = denied(what, error, way_out)
        raise lacking or BackfillError(f"{what}: {_said(error)}{way_out}") from error
    counts = UnitCounts()
    for row in rows:
        counts.add(UnitCounts(row["changelog"], row["sink"], row["tombstones"]))
    return counts


def _said(error: Exception) -> str:
    """The last line of what an executor raised."""
    lines = [line.strip() for line in str(error).splitlines() if "Error: " in line]
    return lines[-1] if lines else f"{type(error).__name__}: {error}"


def _flip(lead: Lead, request: Request, plan: BackfillPlan, units: Sequence[Unit]) -> None:
    """Make the parts the application's."""
    target = request.target
    found = _markers(target, plan, units)
    progress = {place: committed.metadata for place, committed in found.items()}
    live = live_offsets(target, plan, progress)
    try:
        lead.certain(lambda: lead.finish(plan, live, reset=request.reset, begun=False))
    except (AbortableError, OutcomeUnknownError) as error:
        raise BackfillError(
            f"everything of backfill {plan.id} is written, but its offsets could not be committed: "
            f"{error}; run it again with the same id, which does that alone, {DEADLINE}"
        ) from error
    target.forget_group(marker_group(plan))
