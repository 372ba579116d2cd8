"""Units of a handover: rows of a task, or of tasks that run together, in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.task_run import tasks_of
from headrace.streams.kafka.protocols import TopicPartition


@dataclass(frozen=True, slots=True)
class HandoverUnit:
    """Rows of a Spark partition, written in a single transaction.

    Args:
        name: name of its task, or of the first of its tasks.
        tasks: sub-topology and partition of each task.
    """

    name: str
    tasks: tuple[tuple[int, int], ...]
    inputs: tuple[TopicPartition, ...]
    changelogs: tuple[TopicPartition, ...]


def units_of(application: CompiledApplication, plan: BackfillPlan) -> tuple[HandoverUnit, ...]:
    """Return the units of a backfill, which are the Spark partitions of its stages."""
    units: list[HandoverUnit] = []
    for stage in plan.stages:
        tasks = [
            (sub, d)
            for sub in stage
            for d in range(tasks_of(application.plans[sub].topics.all_sources, plan))
        ]
        read = {t for sub in stage for t in application.plans[sub].topics.all_sources}
        written = {t for sub in stage for t in application.plans[sub].topics.repartition_sinks}
        together = [tasks] if not read.isdisjoint(written) else [[task] for task in tasks]
        units += [_unit(application, plan, some) for some in together]
    return tuple(units)


def _unit(
    application: CompiledApplication, plan: BackfillPlan, tasks: Sequence[tuple[int, int]]
) -> HandoverUnit:
    inputs: list[TopicPartition] = []
    changelogs: list[TopicPartition] = []
    for sub, d in tasks:
        sub_plan = application.plans[sub]
        inputs += sub_plan.inputs(d, plan.partitions)
        changelogs += [TopicPartition(topic, d) for topic in sub_plan.changelogs.values()]
    name = "{}_{}".format(*tasks[0])
    return HandoverUnit(name, tuple(tasks), tuple(inputs), tuple(changelogs))


@dataclass(slots=True)
class UnitCounts:
    """Number of records written by a unit, or by all units."""

    changelog: int = 0
    sink: int = 0
    tombstones: int = 0

    def add(self, other: UnitCounts) -> None:
        self.changelog += other.changelog
        self.sink += other.sink
        self.tombstones += other.tombstones

    @property
    def total(self) -> int:
        return self.changelog + self.sink + self.tombstones


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Number, size and age of the rows to write.

    Args:
        rows: number of rows of each task.
        oldest_ms: the smallest timestamp of each topic, by kind and topic.
        size: of all rows, in bytes.
        largest: size of the largest Spark partition, in bytes.
    """

    rows: Mapping[tuple[int, int], int] = field(default_factory=dict)
    oldest_ms: Mapping[tuple[str, str], int] = field(default_factory=dict)
    size: int = 0
    largest: int = 0

    @classmethod
    def of(cls, results: Results) -> RowFacts:
        """Compute the facts in Spark, which runs the stages that have not run."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        wanted = [
            F.sum("rows").alias("rows"),
            F.min("oldest").alias("oldest"),
            F.sum(F.octet_length("data")).alias("size"),
        ]
        tps = ["sub", "d", "kind", "topic", F.spark_partition_id().alias("place")]
        found: list[Any] = results.packs.groupBy(*tps).agg(*wanted).collect()
        sizes: dict[int, int] = {}
        rows: dict[tuple[int, int], int] = {}
        oldest: dict[tuple[str, str], int] = {}
        for row in found:
            task, topic = (row["sub"], row["d"]), (row["kind"], row["topic"])
            rows[task] = rows.get(task, 0) + row["rows"]
            oldest[topic] = min(oldest.get(topic, row["oldest"]), row["oldest"])
            sizes[row["place"]] = sizes.get(row["place"], 0) + (row["size"] or 0)
        return cls(rows, oldest, sum(sizes.values()), max(sizes.values(), default=0))

    @property
    def total(self) -> int:
        return sum(self.rows.values())

    def oldest(self, kind: str) -> dict[str, int]:
        return {topic: at for (found, topic), at in self.oldest_ms.items() if found == kind}


def unit_of(units: Mapping[tuple[int, int], HandoverUnit], task: tuple[int, int]) -> HandoverUnit:
    found = units.get(task)
    if found is None:
        raise BackfillError(f"there are rows of task {task[0]}_{task[1]}, which the plan has not")
    return found
