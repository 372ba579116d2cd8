"""Backfill: runs a topology over history on Spark, and hands the result over to the application.

    plan ─► stages, one Spark task for each task of the topology ─► handover

Before the handover, nothing is written except the application's empty internal topics.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.executor_errors import explained_results
from headrace.spark_bridge.history.archive_checks import Cutover, Source, Times
from headrace.spark_bridge.history.planning import Until, parsed_time
from headrace.spark_bridge.plan.job import Settings, config_of
from headrace.spark_bridge.reports import Report, StageReport
from headrace.spark_bridge.session import require_session
from headrace.state.log import get_logger
from headrace.streams.config.config import StreamsConfig
from headrace.topology.topology import Topology

if TYPE_CHECKING:
    from headrace.spark_bridge.handover.handover import HandoverRequest
    from headrace.spark_bridge.plan.plan import BackfillPlan
    from headrace.spark_bridge.stages import Computation

Outputs = Literal["write", "skip"]
Handover = Literal["auto", "driver", "partitioned"]
OrderChoice = Literal["auto", "exact", "combine"]


def backfill(
    topology: Topology,
    settings: Mapping[str, object] | StreamsConfig,
    *,
    spark: Any,
    until: Until = "latest",
    source: Source = None,
    cutover: Cutover | None = None,
    outputs: Outputs = "write",
    handover: Handover = "auto",
    order: OrderChoice = "auto",
    reset: bool = False,
    times: Times = "check",
    id: str | None = None,  # noqa: A002 - the word for it
    dry_run: bool = False,
    on_stage: Callable[[StageReport], None] | None = None,
) -> Report:
    """Run a topology over history, so that the live application continues with warm state.

    Args:
        topology: topology of the live application.
        settings: settings of the live application.
        spark: a session whose executors import the project and reach the brokers; None to plan.
        until: end of the history: "latest" for the last stable offsets, offsets to stop before by
            partition, or a time; the live application processes later records.
        source: DataFrames by topic, with history that is not in Kafka (docs/backfill.md).
        cutover: start of reading from Kafka after DataFrames without offsets: offsets, or a time.
        outputs: "write" or "skip" the records for topics outside of the application.
        handover: "driver" writes one transaction, "partitioned" one per task; "auto" chooses.
        order: "exact" processes record by record; "combine" aggregates before a repartition topic
            if the final results are equal; "auto" combines if caches are on, which skip updates.
        reset: replace the state and offsets of the application; otherwise they are an error.
        times: "check" rejects DataFrames with implausible timestamps, "trust" accepts them.
        id: of the backfill; to continue an interrupted backfill, pass its id.
        dry_run: only plan: nothing is written, and the topology does not run.
        on_stage: called with the report of each finished stage.

    Raises:
        CannotBackfillError: the topology or the history is unsuitable; nothing has started.
        BackfillError: a record could not be processed; nothing is visible.
        SparkMissingError: Spark is too old.
        StreamsError: the cluster does not answer, or topics are missing or misconfigured.

    Examples:
        >>> from headrace import StreamsBuilder
        >>> topology = StreamsBuilder().build()
        >>> backfill(topology, {"application.id": "a"}, spark=None, dry_run=True, order="random")
        Traceback (most recent call last):
            ...
        headrace.spark_bridge.errors.CannotBackfillError: order must be one of 'auto', 'exact', \
'combine', not 'random'
    """
    begun = time.monotonic()
    require_session(spark)
    _check_choices(outputs=outputs, handover=handover, order=order, times=times)
    id = _started(id, settings)  # noqa: A001
    until, cutover = parsed_time("until", until), parsed_time("cutover", cutover)
    request = _request(topology, settings, outputs, reset=reset)
    plan, is_partitioned, report = _prepared(request, id, until, source, cutover, dry_run=dry_run)
    if report is None:
        from headrace.spark_bridge.stages import compute

        computed = compute(
            topology, settings, spark=spark, until=until, source=source, cutover=cutover,
            outputs=outputs, order=order, times=times, id=id, dry_run=dry_run, plan=plan,
        )  # fmt: skip
        report = Report(computed.plan, archives=computed.archive_reports)
        if not dry_run:
            report = _finish(computed, request, handover, on_stage, is_new=not is_partitioned)
    return replace(report, seconds=time.monotonic() - begun)


def check_or_resume(
    topology: Topology,
    settings: Settings,
    *,
    id: str,  # noqa: A002
    until: Until,
    archived: Collection[str],
    cutover: Cutover | None,
    outputs: Outputs = "write",
    reset: bool = False,
    dry_run: bool = False,
) -> Report | None:
    """Finish an earlier attempt if no Spark job is left to run; return None if Spark is needed.

    Raises:
        CannotBackfillError: the arguments or the cluster do not permit the backfill.
    """
    request = _request(topology, settings, outputs, reset=reset)
    source = dict.fromkeys(archived) or None
    *_, report = _prepared(request, id, until, source, cutover, dry_run=dry_run)
    return report


def _request(
    topology: Topology, settings: Settings, outputs: Outputs, *, reset: bool
) -> HandoverRequest:
    from headrace.spark_bridge.handover.handover import HandoverRequest
    from headrace.spark_bridge.handover.target import HandoverTarget
    from headrace.spark_bridge.plan.job import CompiledApplication
    from headrace.spark_bridge.run.refusals import refuse_early

    application = CompiledApplication.of(topology, settings)
    refuse_early(topology, application)
    target = HandoverTarget.live(application)
    return HandoverRequest(target=target, outputs=outputs, reset=reset)


def _prepared(
    request: HandoverRequest,
    backfill_id: str,
    until: Until,
    source: Source,
    cutover: Cutover | None,
    *,
    dry_run: bool,
) -> tuple[BackfillPlan | None, bool, Report | None]:
    """Check everything that needs no Spark, and finish an earlier attempt that needs no Spark.

    Returns:
        The plan of an earlier attempt, whether its handover is partitioned, and its report if it
        is finished.
    """
    from headrace.spark_bridge.handover.handover import check_target, find_earlier_attempt, finish
    from headrace.spark_bridge.history.archives import ArchiveSet
    from headrace.spark_bridge.history.planning import make_plan
    from headrace.spark_bridge.run.refusals import refuse_processors

    target = request.target
    found = find_earlier_attempt(backfill_id, target)
    if found.plan is not None and not dry_run:
        if found.is_done:
            return found.plan, found.is_partitioned, Report(found.plan)
        handed = finish(found.plan, request) if found.is_partitioned else None
        if handed is not None:
            return found.plan, True, Report(found.plan, handover=handed)
    ArchiveSet.check(source, target.application, target.admin, cutover, found.plan)
    planned = found.plan or make_plan(
        target.application,
        target.admin,
        id=backfill_id,
        now_ms=target.now_ms(),
        until=until,
        create=False,
    )
    refuse_processors(target.application, planned)
    if not found.is_partitioned:
        check_target(request, planned)
    return found.plan, found.is_partitioned, None


def _finish(
    computed: Computation,
    request: HandoverRequest,
    handover: Handover,
    on_stage: Callable[[StageReport], None] | None,
    *,
    is_new: bool,
) -> Report:
    from headrace.spark_bridge.handover.handover import check_target, hand_over

    with cleanup_after(computed.release, quietly=True):
        if is_new:
            check_target(request, computed.plan)
        stages = computed.run(on_stage)
        results = computed.results
        with explained_results():
            rows = results.counts
        handed = hand_over(results, request, handover)
    return Report(computed.plan, stages, rows, handed, archives=computed.archive_reports)


_CHOICES = {"outputs": Outputs, "handover": Handover, "order": OrderChoice, "times": Times}


def _check_choices(**given: str) -> None:
    for name, word in given.items():
        allowed = get_args(_CHOICES[name])
        if word not in allowed:
            choices = ", ".join(map(repr, allowed))
            raise CannotBackfillError(f"{name} must be one of {choices}, not {word!r}")


def _started(backfill_id: str | None, settings: Settings) -> str:
    """Log the start, with the id that continues the backfill."""
    started, application_id = backfill_id or new_id(), config_of(settings).application_id
    get_logger().info("backfill_started", backfill=started, application=application_id)
    return started


def new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
