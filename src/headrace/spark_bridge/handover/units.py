"""What is written in one transaction: a task's rows, or those of tasks that run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.plan.job import Application
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.task_run import tasks_of
from headrace.streams.kafka.protocols import TopicPartition


@dataclass(frozen=True, slots=True)
class HandoverUnit:
    """The rows of one Spark partition.

    Args:
        name: as its task is called, or the first of its tasks.
        tasks: sub-topology and partition of each.
    """

    name: str
    tasks: tuple[tuple[int, int], ...]
    inputs: tuple[TopicPartition, ...]
    changelogs: tuple[TopicPartition, ...]


def units_of(application: Application, plan: BackfillPlan) -> tuple[HandoverUnit, ...]:
    """The units of a backfill: one for each Spark partition of its stages."""
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
    application: Application, plan: BackfillPlan, tasks: Sequence[tuple[int, int]]
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
    """How many records one unit, or all of them, wrote."""

    changelog: int = 0
    sink: int = 0
    tombstones: int = 0

    def add(self, other: UnitCounts) -> None:
        """Count those of another one too."""
        self.changelog += other.changelog
        self.sink += other.sink
        self.tombstones += other.tombstones

    @property
    def total(self) -> int:
        """All of them."""
        return self.changelog + self.sink + self.tombstones


@dataclass(frozen=True, slots=True)
class RowFacts:
    """How much there is to write, and how old it is.

    Args:
        oldest_ms: the smallest timestamp of each topic, by kind and topic.
        size: of all rows, in bytes.
        largest: of those in one partition of Spark, in bytes.
    """

    rows: Mapping[tuple[int, int], int] = field(default_factory=dict)
    oldest_ms: Mapping[tuple[str, str], int] = field(default_factory=dict)
    size: int = 0
    largest: int = 0

    @classmethod
    def of(cls, results: Results) -> RowFacts:
        """Ask Spark; stages that have not run yet do so."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        wanted = [
            F.sum("rows").alias("rows"),
            F.min("oldest").alias("oldest"),
            F.sum(F.octet_length("data")).alias("size"),
        ]
        places = ["sub", "d", "kind", "topic", F.spark_partition_id().alias("place")]
        found: list[Any] = results.packs.groupBy(*places).agg(*wanted).collect()
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
        """How many rows there are."""
        return sum(self.rows.values())

    def oldest(self, kind: str) -> dict[str, int]:
        """The smallest timestamp of each topic that rows of a kind are for."""
        return {topic: at for (found, topic), at in self.oldest_ms.items() if found == kind}


def unit_of(units: Mapping[tuple[int, int], HandoverUnit], task: tuple[int, int]) -> HandoverUnit:
    """The unit that a task's rows belong to.

    Raises:
        BackfillError: the rows are of another plan.
    """
    found = units.get(task)
    if found is None:
        raise BackfillError(f"there are rows of task {task[0]}_{task[1]}, which the plan has not")
    return found
