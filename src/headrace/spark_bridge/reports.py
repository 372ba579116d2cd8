"""Report of a finished backfill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from headrace.spark_bridge.plan.plan import BackfillPlan


@dataclass(frozen=True, slots=True)
class StageReport:
    """Report of a stage.

    Args:
        sub_topologies: ids of the sub-topologies that ran.
        tasks: number of tasks.
        records: number of records that the tasks processed.
        seconds: duration.
        spilled: number of tasks whose state moved to disk.
        dropped: number of dropped records, by node and reason.
    """

    sub_topologies: tuple[int, ...]
    tasks: int
    records: int
    seconds: float
    spilled: int = 0
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """Report of the archive of a topic.

    Args:
        topic: name of the topic.
        rows: number of rows.
        first_ms: the lowest timestamp, in milliseconds since 1970.
        last_ms: the highest timestamp.
        partitions: number of partitions of the topic that have rows, or that the keys are divided
            among.
        longest_gap: first and last day of the longest time without rows, in UTC; None if each day
            between the first and the last row has rows.
    """

    topic: str
    rows: int
    first_ms: int | None
    last_ms: int | None
    partitions: int
    longest_gap: tuple[date, date] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a backfill.

    Args:
        plan: the ranges that it read.
        stages: the stages that ran.
        rows: number of computed rows, by kind ("changelog", "sink", "progress") and topic.
        handover: report of the handover (see `headrace.spark_bridge.handover.handover`); None if
            there was no handover, for example because an earlier attempt completed it.
        seconds: duration of the whole backfill.
        archives: the archives that it read.
    """

    plan: BackfillPlan
    stages: tuple[StageReport, ...] = ()
    rows: Mapping[tuple[str, str], int] = field(default_factory=dict)
    handover: Any = None
    seconds: float = 0.0
    archives: tuple[ArchiveReport, ...] = ()

    @property
    def id(self) -> str:
        """Id of the backfill, needed to run it again."""
        return self.plan.id

    @property
    def records(self) -> int:
        """Number of records that all stages processed."""
        return sum(stage.records for stage in self.stages)

    @property
    def keys(self) -> int:
        """Number of computed rows for changelogs of stores; a version is a row, too."""
        return sum(count for (kind, _), count in self.rows.items() if kind == "changelog")

    @property
    def outputs(self) -> int:
        """Number of records for topics outside of the application."""
        return sum(count for (kind, _), count in self.rows.items() if kind == "sink")
