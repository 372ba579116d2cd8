"""Backfill: runs a topology over history on Spark, and hands the result over to the application.

    plan ─► stages, one Spark task for each task of the topology ─► handover

Before the handover, nothing is written except the application's empty internal topics.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.executor_errors import explained_results
from headrace.spark_bridge.history.archive_checks import Cutover, Source, Times
from headrace.spark_bridge.history.planning import Until
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
            partition, or a time with a time zone. The live application processes later records.
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
    _check_choices(outputs=(outputs, Outputs), handover=(handover, Handover))
    _check_choices(order=(order, OrderChoice), times=(times, Times))
    id = _started(id, settings)  # noqa: A001
    request = None if dry_run else _request(topology, settings, outputs, reset=reset)
    plan, is_partitioned, report = (None, False, None) if request is None else _earlier(request, id)
    if report is None:
        from headrace.spark_bridge.stages import compute

        computed = compute(
            topology, settings, spark=spark, until=until, source=source, cutover=cutover,
            outputs=outputs, order=order, times=times, id=id, dry_run=dry_run, plan=plan,
        )  # fmt: skip
        report = Report(computed.plan)
        if request is not None:
            report = _finish(computed, request, handover, on_stage, is_new=not is_partitioned)
    return replace(report, seconds=time.monotonic() - begun)


def resume(
    topology: Topology,
    settings: Mapping[str, object] | StreamsConfig,
    *,
    id: str,  # noqa: A002
    outputs: Outputs = "write",
    reset: bool = False,
) -> Report | None:
    """Finish an earlier attempt if no Spark job is left to run; return None if Spark is needed."""
    *_, report = _earlier(_request(topology, settings, outputs, reset=reset), id)
    return report


def _request(
    topology: Topology,
    settings: Mapping[str, object] | StreamsConfig,
    outputs: Outputs,
    *,
    reset: bool,
) -> HandoverRequest:
    from headrace.spark_bridge.handover.handover import HandoverRequest
    from headrace.spark_bridge.handover.target import HandoverTarget
    from headrace.spark_bridge.plan.job import CompiledApplication

    target = HandoverTarget.live(CompiledApplication.of(topology, settings))
    return HandoverRequest(target=target, outputs=outputs, reset=reset)


def _earlier(
    request: HandoverRequest, backfill_id: str
) -> tuple[BackfillPlan | None, bool, Report | None]:
    """Find an earlier attempt, and finish it if no Spark job is left to run.

    Returns:
        Its plan, whether its handover is partitioned, and its report if it is finished.
    """
    from headrace.spark_bridge.handover.handover import find_earlier_attempt, finish

    found = find_earlier_attempt(backfill_id, request.target)
    report = None
    if found.plan is not None and found.is_done:
        report = Report(found.plan)
    elif found.plan is not None and found.is_partitioned:
        handed = finish(found.plan, request)
        report = None if handed is None else Report(found.plan, handover=handed)
    return found.plan, found.is_partitioned, report


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
    return Report(computed.plan, stages, rows, handed)


def _check_choices(**given: tuple[str, Any]) -> None:
    for name, (word, allowed) in given.items():
        if word not in get_args(allowed):
            choices = ", ".join(map(repr, get_args(allowed)))
            raise CannotBackfillError(f"{name} must be one of {choices}, not {word!r}")


def _started(backfill_id: str | None, settings: Settings) -> str:
    """Log the start, with the id that continues the backfill."""
    started, application_id = backfill_id or new_id(), config_of(settings).application_id
    get_logger().info("backfill_started", backfill=started, application=application_id)
    return started


def new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
