"""What a backfill did, as it says it at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.spark_bridge.plan.plan import BackfillPlan


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage did.

    Args:
        sub_topologies: the ids of what ran.
        tasks: how many tasks there were.
        records: how many records they processed.
        seconds: how long it took.
        spilled: how many of the tasks had to put their state on disk.
        dropped: how many records were left out, by node and reason.
    """

    sub_topologies: tuple[int, ...]
    tasks: int
    records: int
    seconds: float
    spilled: int = 0
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What a backfill did.

    Args:
        plan: what it read.
        stages: what ran.
        rows: how many rows were made, by kind ("changelog", "sink", "progress") and topic.
        handover: what the hand-over says of itself (see `headrace.spark_bridge.handover.handover`);
            None where there was none, as after an earlier attempt that was complete.
        seconds: how long everything took.
    """

    plan: BackfillPlan
    stages: tuple[StageReport, ...] = ()
    rows: Mapping[tuple[str, str], int] = field(default_factory=dict)
    handover: Any = None
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """Of the backfill, for a second attempt."""
        return self.plan.id

    @property
    def records(self) -> int:
        """How many records were processed, in all stages."""
        return sum(stage.records for stage in self.stages)

    @property
    def keys(self) -> int:
        """How many rows of stores there are."""
        return sum(count for (kind, _), count in self.rows.items() if kind == "changelog")

    @property
    def outputs(self) -> int:
        """How many records there are for topics outside of the application."""
        return sum(count for (kind, _), count in self.rows.items() if kind == "sink")
