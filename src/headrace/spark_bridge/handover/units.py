"""Units of a handover: rows of a task, or of tasks that run together, in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.results import Results
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
        tasks = application.tasks(stage, plan)
        together = [tasks] if application.writes_to_itself(stage) else [[task] for task in tasks]
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

    @property
    def total(self) -> int:
        return self.changelog + self.sink + self.tombstones


@dataclass(frozen=True, slots=True)
class RowSummary:
    """Number, size and age of the rows to write.

    Args:
        rows: number of all rows.
        oldest_ms: the smallest timestamp of each topic, by kind and topic.
        size: of all rows, in bytes.
        largest: size of the largest Spark partition, in bytes.
    """

    rows: int = 0
    oldest_ms: Mapping[tuple[str, str], int] = field(default_factory=dict)
    size: int = 0
    largest: int = 0

    @classmethod
    def of(cls, results: Results) -> RowSummary:
        """Compute the summary in Spark, which runs the stages that have not run."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        wanted = [
            F.sum("rows").alias("rows"),
            F.min("oldest").alias("oldest"),
            F.sum(F.octet_length("data")).alias("size"),
        ]
        groups = ["kind", "topic", F.spark_partition_id().alias("part")]
        found: list[Any] = results.packs.groupBy(*groups).agg(*wanted).collect()
        sizes: dict[int, int] = {}
        oldest: dict[tuple[str, str], int] = {}
        for row in found:
            topic, part = (row["kind"], row["topic"]), row["part"]
            oldest[topic] = min(oldest.get(topic, row["oldest"]), row["oldest"])
            sizes[part] = sizes.get(part, 0) + (row["size"] or 0)
        rows = sum(row["rows"] for row in found)
        return cls(rows, oldest, sum(sizes.values()), max(sizes.values(), default=0))

    def oldest(self, kind: str) -> dict[str, int]:
        return {topic: at for (found, topic), at in self.oldest_ms.items() if found == kind}
