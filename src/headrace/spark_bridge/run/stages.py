"""Stages of a backfill as Spark frames, with a Spark task for each task of the topology."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.spark_bridge.plan.job import CompiledApplication, StageJob
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.packs import ORDER, PACK_DDL, RESULT_KINDS
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.task_run import run_stage, tasks_of


class Stages:
    """Frames of a backfill, lazy and persisted.

    Args:
        frames: of each stage, by its sub-topologies.
    """

    def __init__(self, frames: Mapping[tuple[int, ...], Any], plan: BackfillPlan) -> None:
        self.frames = frames
        self.plan = plan

    @property
    def results(self) -> Results:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        kept = F.col("kind").isin(*RESULT_KINDS)
        found = [frame.where(kept) for frame in self.frames.values()]
        whole = found[0]
        for frame in found[1:]:
            whole = whole.unionAll(frame)
        return Results(whole, self.plan)

    def stats(self, stage: tuple[int, ...]) -> list[dict[str, Any]]:
        """Run a stage, and return the statistics of its tasks."""
        rows = self.frames[stage].where("kind = 'stats'").select("data").collect()
        return [json.loads(bytes(row["data"])) for row in rows]

    def release(self) -> None:
        for frame in self.frames.values():
            frame.unpersist()


def make_stages(
    spark: Any,
    application: CompiledApplication,
    plan: BackfillPlan,
    job: StageJob,
    archives: Sequence[Any] = (),
) -> Stages:
    """Create the frames of all stages, without running them; `job` is of any stage."""
    from pyspark import StorageLevel

    frames: dict[tuple[int, ...], Any] = {}
    for stage in plan.stages:
        subs = [application.plans[sub].topics for sub in stage]
        read = {topic for topics in subs for topic in topics.all_sources}
        written = {topic for topics in subs for topic in topics.repartition_sinks}
        is_circle = not read.isdisjoint(written)
        count = 1 if is_circle else tasks_of(subs[0].all_sources, plan)
        above = [
            frame
            for one, frame in frames.items()
            if any(not read.isdisjoint(application.plans[s].topics.repartition_sinks) for s in one)
        ]
        found = [_records(frame, read) for frame in (*above, *archives)]
        rows = _input(spark, found, count, is_circle=is_circle)
        frame = rows.mapInArrow(run_stage(replace(job, stage=stage)), PACK_DDL)
        frames[stage] = frame.persist(StorageLevel.DISK_ONLY)
    return Stages(frames, plan)


def _records(frame: Any, topics: set[str]) -> Any:
    """Return the packs for a stage that reads these topics."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.where((F.col("kind") == "record") & F.col("topic").isin(*sorted(topics)))


def _input(spark: Any, found: Sequence[Any], count: int, *, is_circle: bool) -> Any:
    """Return the sorted packs, with the packs of each task in a separate Spark partition."""
    from pyspark.sql import functions as F  # noqa: N812

    if not found:
        # The tasks read everything from Kafka: only their number matters here.
        return spark.range(0, count, 1, count)
    rows = found[0]
    for frame in found[1:]:
        rows = rows.unionAll(frame)
    rows = rows.unionAll(_signs_of_life(spark, count, rows.schema))
    place = F.lit(0) if is_circle else F.col("partition")
    return rows.repartitionById(count, place).sortWithinPartitions(*ORDER)


def _signs_of_life(spark: Any, count: int, schema: Any) -> Any:
    """Return a row without a pack for each task, because Spark skips a stage without rows."""
    from pyspark.sql import functions as F  # noqa: N812

    known = {"kind": F.lit("sign"), "partition": F.col("id")}
    columns = [
        known.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in schema
    ]
    return spark.range(0, count, 1, count).select(*columns)
