"""The results of a backfill on a real broker, computed in this process: no Spark to wait for.

What Spark does to run the parts of a hand-over is a few lines here, a second attempt of a task that
failed included. Everything else is the production code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.spark_bridge.handover.units import HandoverUnit, RowSummary, units_of
from headrace.spark_bridge.history.planning import make_plan
from headrace.spark_bridge.plan.job import CompiledApplication, StageJob, pack_application
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import consumer_opener
from headrace.spark_bridge.records.packs import RESULT, RESULT_KINDS
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.admin import LiveAdmin
from headrace.topology import Topology
from tests.spark_bridge.support.local_packs import Pack, rows_of, run_stage

ATTEMPTS_MAX = 4
BATCH_ROWS = 50

Row = dict[str, Any]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def plan_of(topology: Topology, settings: Mapping[str, Any], backfill_id: str) -> BackfillPlan:
    """Plan a backfill of everything that is decided now, and make the internal topics."""
    application = CompiledApplication.of(topology, settings)
    admin = LiveAdmin(application.config.admin_config(), timeout_s=30)
    return make_plan(
        application,
        admin,
        id=backfill_id,
        now_ms=1_700_000_000_000,
        until="latest",
        create=True,
    )


def computed(topology: Topology, settings: Mapping[str, Any], plan: BackfillPlan) -> LocalResults:
    """Run the stages of a plan over the broker's records."""
    config = StreamsConfig.parse(settings)
    job = StageJob(pack_application(topology, config), plan.to_text(), ())
    packs: list[Pack] = []
    opener = consumer_opener(config)
    for stage in plan.stages:
        packs += run_stage(replace(job, stage=stage), packs, opener)
    rows = rows_of([pack for pack in packs if pack["kind"] in RESULT_KINDS])
    application = CompiledApplication.of(topology, settings)
    return LocalResults(LocalRows(rows, units_of(application, plan)), plan)


def batches_of(rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """Small batches, so that a fault can come between two."""
    for start in range(0, len(rows), BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(list(rows[start : start + BATCH_ROWS]), schema=RESULT)


@dataclass(frozen=True)
class LocalRows:
    """Rows by units, as Spark has them by its partitions."""

    rows: Sequence[Row]
    units: Sequence[HandoverUnit]

    def of(self, unit: HandoverUnit) -> list[Row]:
        """The rows of one unit."""
        return [row for row in self.rows if (row["sub"], row["d"]) in unit.tasks]

    def summary(self) -> RowSummary:
        """As `RowSummary.of` asks Spark."""
        oldest: dict[tuple[str, str], int] = {}
        for row in self.rows:
            topic = row["kind"], row["topic"]
            oldest[topic] = min(oldest.get(topic, row["timestamp"]), row["timestamp"])
        return RowSummary(len(self.rows), oldest)


@dataclass(frozen=True)
class LocalResults:
    """What a hand-over takes (see `headrace.spark_bridge.records.results.Results`)."""

    local: LocalRows
    plan: BackfillPlan

    def batches(self, largest: int | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, unit by unit."""
        for unit in self.local.units:
            yield from batches_of(self.local.of(unit))

    def run(self, work: Work, ddl: str) -> list[Row]:
        """Run a task for each unit, each as often as Spark tries it."""
        found: list[Row] = []
        for unit in self.local.units:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    for batch in work(batches_of(self.local.of(unit))):
                        found += batch.to_pylist()
                    break
                except Exception:
                    if attempt == ATTEMPTS_MAX:
                        raise
        return found
