"""Stages of a backfill as Spark frames, with a Spark task for each task of the topology."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.executor_errors import executor_error
from headrace.spark_bridge.history.archive_checks import Cutover, Source, Times
from headrace.spark_bridge.history.archives import ArchiveSet
from headrace.spark_bridge.history.planning import Until, make_plan
from headrace.spark_bridge.plan.job import (
    CompiledApplication,
    StageJob,
    combined_topics,
    config_of,
    pack_application,
)
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.packs import ORDER, PACK_DDL, RESULT_KINDS
from headrace.spark_bridge.records.results import Results
from headrace.spark_bridge.reports import ArchiveReport, StageReport
from headrace.spark_bridge.run.refusals import refuse_early, refuse_processors
from headrace.spark_bridge.run.task_run import run_stage
from headrace.spark_bridge.stage_watch import SparkTaskReport, SparkTaskReports, watched
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.connectivity import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.topology.topology import Topology

Stage = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computation:
    """Backfill without its handover: a plan, and frames that are computed on demand.

    Args:
        frames: of each stage, by its sub-topologies; lazy and persisted on the executors' disks.
        archives: the persisted records of archives.
        archive_reports: what the archives have.
        tasks: number of Spark tasks of each stage.
        reports: of the finished tasks.
    """

    plan: BackfillPlan
    frames: Mapping[Stage, Any] = field(default_factory=dict)
    archives: Sequence[Any] = ()
    tasks: Mapping[Stage, int] = field(default_factory=dict)
    archive_reports: tuple[ArchiveReport, ...] = ()
    reports: SparkTaskReports = field(default_factory=lambda: SparkTaskReports(None))

    @property
    def results(self) -> Results:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        is_result = F.col("kind").isin(*RESULT_KINDS)
        frames = [frame.where(is_result) for frame in self.frames.values()]
        return Results(_union(frames), self.plan)

    def run(self, on_stage: Callable[[StageReport], None] | None = None) -> tuple[StageReport, ...]:
        """Run the stages in sequence, and persist their results on the executors' disks."""
        reports = []
        for stage in self.plan.stages:
            reports.append(self._run_stage(stage))
            if on_stage is not None:
                on_stage(reports[-1])
        return tuple(reports)

    def _run_stage(self, stage: Stage) -> StageReport:
        begun = time.monotonic()
        frame = self.frames[stage].where("kind in ('stats', 'failed')").select("kind", "data")
        failed: list[SparkTaskReport] = []
        try:
            with watched(self.reports, self.plan.id, stage, self.tasks[stage]) as failed:
                rows = frame.collect()
        except Exception as error:
            if not failed:
                raise stage_error(stage, error) from error
        if failed:
            raise failed_records(stage, failed)
        tasks = [json.loads(bytes(row["data"])) for row in rows]
        dropped: dict[tuple[str, str], int] = {}
        for task in tasks:
            for node, reason, count in task["dropped"]:
                dropped[node, reason] = dropped.get((node, reason), 0) + count
        return StageReport(
            stage,
            len(tasks),
            sum(task["records"] for task in tasks),
            time.monotonic() - begun,
            sum(task["on_disk"] for task in tasks),
            dropped,
        )

    def release(self) -> None:
        """Remove persisted frames from the executors' disks."""
        frames = (*self.frames.values(), *self.archives)
        with cleanup_after(*[frame.unpersist for frame in frames]):
            pass


def compute(
    topology: Topology,
    settings: Mapping[str, object] | StreamsConfig,
    *,
    spark: Any,
    id: str,  # noqa: A002 - as the public function calls it
    until: Until = "latest",
    source: Source = None,
    cutover: Cutover | None = None,
    outputs: str = "write",
    order: str = "auto",
    times: Times = "check",
    dry_run: bool = False,
    plan: BackfillPlan | None = None,
) -> Computation:
    """Plan a backfill, or follow an earlier `plan`, and create its frames without running them."""
    if spark is None and not dry_run:
        raise CannotBackfillError("spark is None. Pass a session, such as local_session().")
    config = config_of(settings)
    application = CompiledApplication.of(topology, config)
    refuse_early(topology, application)
    reach(config.admin_config())
    admin = GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    archives = ArchiveSet.open(source, application, admin, cutover, plan, times)
    if plan is None:
        plan = make_plan(
            application,
            admin,
            id=id,
            now_ms=int(time.time() * 1000),
            until=until,
            create=not dry_run,
            cuts=archives.cuts,
        )
        plan = archives.ended(plan, until)
    refuse_processors(application, plan)
    found = archives.reports
    if dry_run:
        return Computation(plan, archive_reports=found)
    combined = combined_topics(topology, config, order)
    application = CompiledApplication.of(topology, config, combined)
    packed = pack_application(topology, config)
    job = StageJob(packed, plan.to_text(), (), combined, with_sinks=outputs == "write")
    frames, archived = archives.numbered(job, plan)
    job = replace(job, archived=archived)
    reports = SparkTaskReports(spark)
    counts = {stage: _count(application, plan, stage) for stage in plan.stages}
    stages = _frames(spark, application, counts, job, frames, reports)
    return Computation(plan, stages, frames, counts, found, reports)


def stage_error(stage: Stage, error: Exception) -> Exception:
    subs = ", ".join(map(str, stage))
    return executor_error(f"sub-topology {subs} cannot be computed", error)


def failed_records(stage: Stage, failed: Sequence[SparkTaskReport]) -> BackfillError:
    """Return the error for tasks of a stage that reported a record that they cannot process."""
    subs, first = ", ".join(map(str, stage)), failed[0].error
    others = f"; {len(failed) - 1} other tasks have failed, too" if len(failed) > 1 else ""
    return BackfillError(
        f"sub-topology {subs} cannot be computed: {first}{others}. Nothing is visible. Correct the "
        "cause, and run the backfill again"
    )


def _frames(
    spark: Any,
    application: CompiledApplication,
    counts: Mapping[Stage, int],
    job: StageJob,
    archives: Sequence[Any],
    reports: SparkTaskReports,
) -> dict[Stage, Any]:
    """Create the frames of all stages, without running them; `job` is of any stage."""
    from pyspark import StorageLevel

    frames: dict[Stage, Any] = {}
    for stage, count in counts.items():
        read = {topic for sub in stage for topic in application.plans[sub].topics.all_sources}
        is_cycle = application.writes_to_itself(stage)
        upstream = [
            frame
            for one, frame in frames.items()
            if any(not read.isdisjoint(application.plans[s].topics.repartition_sinks) for s in one)
        ]
        found = [_records(frame, read) for frame in (*upstream, *archives)]
        rows = _input(spark, found, count, is_cycle=is_cycle)
        frame = rows.mapInArrow(run_stage(replace(job, stage=stage), reports), PACK_DDL)
        frames[stage] = frame.persist(StorageLevel.DISK_ONLY)
    return frames


def _count(application: CompiledApplication, plan: BackfillPlan, stage: Stage) -> int:
    """Return the number of Spark tasks of a stage."""
    return 1 if application.writes_to_itself(stage) else len(application.tasks(stage, plan))


def _union(frames: Sequence[Any]) -> Any:
    return reduce(lambda one, other: one.unionAll(other), frames)


def _records(frame: Any, topics: set[str]) -> Any:
    """Return the packs for a stage that reads these topics."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.where((F.col("kind") == "record") & F.col("topic").isin(*sorted(topics)))


def _input(spark: Any, found: Sequence[Any], count: int, *, is_cycle: bool) -> Any:
    """Return the sorted packs, with the packs of each task in a separate Spark partition."""
    from pyspark.sql import functions as F  # noqa: N812

    # Spark skips a stage without rows, so each task also gets a row without a pack.
    numbers = spark.range(0, count, 1, count)
    if not found:
        # The tasks read everything from Kafka: only their number matters here.
        return numbers
    known = {"kind": F.lit("sign"), "partition": F.col("id")}
    columns = [
        known.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in found[0].schema
    ]
    rows = _union([*found, numbers.select(*columns)])
    partition = F.lit(0) if is_cycle else F.col("partition")
    return rows.repartitionById(count, partition).sortWithinPartitions(*ORDER)
