"""Backfill: runs a topology over history on Spark, and hands the result over to the application.

    plan ─► stages, one Spark task for each task of the topology ─► handover

Before the handover, nothing is written except the application's empty internal topics.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.history.archive_cuts import Cutover
from headrace.spark_bridge.history.archive_set import ArchiveSet, Source, Times
from headrace.spark_bridge.history.planning import Until
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.reports import Report, StageReport
from headrace.spark_bridge.run.stage_errors import said_of_results, stage_error
from headrace.spark_bridge.session import require_session
from headrace.streams.config.config import StreamsConfig
from headrace.topology.topology import Topology

if TYPE_CHECKING:
    from headrace.spark_bridge.handover.handover import Request

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
        spark: a SparkSession whose executors can import the project and reach the brokers.
        until: end of the history: "latest" for the last stable offsets, offsets to stop before by
            partition, or a time with a time zone. The live application processes later records.
        source: DataFrames by topic, with history that is not in Kafka (see
            `headrace.spark_bridge.history.archive_packs`).
        cutover: start of reading from Kafka after DataFrames without offsets: offsets, or a time.
        outputs: "write" or "skip" the records for topics outside of the application.
        handover: "driver" writes one transaction, "partitioned" one per task; "auto" chooses.
        order: "exact" processes record by record; "combine" aggregates before a repartition topic
            if the final results are equal, with fewer intermediate updates; "auto" does so if
            caches are on, which skip updates, too.
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

    >>> from headrace import StreamsBuilder
    >>> backfill(StreamsBuilder().build(), {"application.id": "a"}, spark=None, order="random")
    Traceback (most recent call last):
        ...
    headrace.spark_bridge.errors.CannotBackfillError: order must be one of 'auto', 'exact', \
'combine', not 'random'
    """
    begun = time.monotonic()
    require_session(spark)
    _check_words(outputs=(outputs, Outputs), handover=(handover, Handover))
    _check_words(order=(order, OrderChoice), times=(times, Times))
    attempt = _Attempt(topology, settings, outputs, reset)
    id = id or new_id()  # noqa: A001
    report = None if dry_run else attempt.ended(id)
    if report is None:
        computed = compute(
            topology, settings, spark=spark, until=until, source=source, cutover=cutover,
            outputs=outputs, order=order, times=times, id=id, dry_run=dry_run, plan=attempt.plan,
        )  # fmt: skip
        report = Report(computed.plan)
        if not dry_run:
            report = attempt.finish(computed, on_stage, handover)
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
    return _Attempt(topology, settings, outputs, reset).ended(id)


@dataclass(slots=True, eq=False)
class _Attempt:
    """Attempt of a backfill, with the state of earlier attempts on the cluster."""

    topology: Topology
    settings: Mapping[str, object] | StreamsConfig
    outputs: Outputs
    reset: bool
    plan: BackfillPlan | None = None
    _in_parts: bool = False

    def ended(self, backfill_id: str) -> Report | None:
        """Look up an earlier attempt, and finish it if no Spark job is left to run."""
        from headrace.spark_bridge.handover.handover import find, finish

        request = self._request()
        found = find(backfill_id, request.target)
        self.plan, self._in_parts = found.plan, found.in_parts
        if found.plan is None:
            return None
        if found.is_done:
            return Report(found.plan)
        if not found.in_parts:
            return None
        handed = finish(found.plan, request)
        return None if handed is None else Report(found.plan, handover=handed)

    def _request(self) -> Request:
        from headrace.spark_bridge.handover.handover import Request
        from headrace.spark_bridge.handover.target import HandoverTarget
        from headrace.spark_bridge.plan.job import CompiledApplication

        target = HandoverTarget.live(CompiledApplication.of(self.topology, self.settings))
        return Request(target=target, outputs=self.outputs, reset=self.reset)

    def finish(
        self,
        computed: Computation,
        on_stage: Callable[[StageReport], None] | None,
        handover: Handover,
    ) -> Report:
        from headrace.spark_bridge.handover.handover import check_target, hand_over

        request = self._request()
        with and_then(computed.release, quietly=True):
            if not self._in_parts:
                check_target(request, computed.plan)
            stages = computed.run(on_stage)
            results = computed.results
            with said_of_results():
                rows = results.counts
            handed = hand_over(results, request, handover)
        return Report(computed.plan, stages, rows, handed)


@dataclass(frozen=True, slots=True)
class Computation:
    """Backfill without its handover: a plan, and frames that are computed on demand."""

    config: StreamsConfig
    plan: BackfillPlan
    _stages: Any = None
    _archives: Sequence[Any] = ()

    @property
    def results(self) -> Any:
        """Results to hand over (a `headrace.spark_bridge.records.records.Results`)."""
        return self._stages.results

    def run(self, on_stage: Callable[[StageReport], None] | None = None) -> tuple[StageReport, ...]:
        """Run the stages in sequence, and persist their results on the executors' disks."""
        reports = []
        for stage in self.plan.stages:
            report = self._run_stage(stage)
            reports.append(report)
            if on_stage is not None:
                on_stage(report)
        return tuple(reports)

    def _run_stage(self, stage: tuple[int, ...]) -> StageReport:
        begun = time.monotonic()
        try:
            said = self._stages.stats(stage)
        except Exception as error:
            raise stage_error(stage, error) from error
        dropped: dict[tuple[str, str], int] = {}
        for one in said:
            for node, reason, count in one["dropped"]:
                dropped[node, reason] = dropped.get((node, reason), 0) + count
        return StageReport(
            stage,
            len(said),
            sum(one["records"] for one in said),
            time.monotonic() - begun,
            sum(one["on_disk"] for one in said),
            dropped,
        )

    def release(self) -> None:
        """Remove persisted frames from the executors' disks."""
        stages = [] if self._stages is None else [self._stages.release]
        with and_then(*stages, *[frame.unpersist for frame in self._archives]):
            pass


def compute(
    topology: Topology,
    settings: Mapping[str, object] | StreamsConfig,
    *,
    spark: Any,
    until: Until = "latest",
    source: Source = None,
    cutover: Cutover | None = None,
    outputs: Outputs = "write",
    order: OrderChoice = "auto",
    times: Times = "check",
    id: str | None = None,  # noqa: A002
    dry_run: bool = False,
    plan: BackfillPlan | None = None,
) -> Computation:
    """Plan a backfill, or follow an earlier `plan`, and create its frames without running them."""
    from headrace.spark_bridge.history.planning import make_plan
    from headrace.spark_bridge.plan.job import CompiledApplication, StageJob, pack_application
    from headrace.spark_bridge.program.combine import combined_topics
    from headrace.spark_bridge.run.refusals import refuse_early, refuse_processors
    from headrace.spark_bridge.run.stages import make_stages
    from headrace.streams.kafka.admin import LiveAdmin
    from headrace.streams.kafka.connectivity import reach

    _check_words(order=(order, OrderChoice))
    config = settings if isinstance(settings, StreamsConfig) else StreamsConfig.parse(settings)
    application = CompiledApplication.of(topology, config)
    refuse_early(topology, application)
    reach(config.admin_config())
    admin = LiveAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    archives = ArchiveSet.open(source, application, admin, cutover, plan, times)
    if plan is None:
        plan = make_plan(
            application,
            admin,
            id=id or new_id(),
            now_ms=int(time.time() * 1000),
            until=until,
            create=not dry_run,
            cuts=archives.cuts,
        )
        plan = archives.ended(plan, until)
    refuse_processors(application, plan)
    if dry_run:
        return Computation(config, plan)
    combined = combined_topics(topology, config, order)
    application = CompiledApplication.of(topology, config, combined)
    packed = pack_application(topology, config)
    job = StageJob(packed, plan.to_text(), (), combined, with_sinks=outputs == "write")
    frames, archived = archives.numbered(job, plan)
    job = replace(job, archived=archived)
    stages = make_stages(spark, application, plan, job, frames)
    return Computation(config, plan, stages, frames)


def _check_words(**given: tuple[str, Any]) -> None:
    for name, (word, allowed) in given.items():
        if word not in get_args(allowed):
            words = ", ".join(map(repr, get_args(allowed)))
            raise CannotBackfillError(f"{name} must be one of {words}, not {word!r}")


def new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
