"""The results of a backfill on a real broker, computed in this process: no Spark to wait for.

What Spark does to run the parts of a hand-over is a few lines here, a second attempt of a task that
failed included. Everything else is the production code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa

from spark_bridge.handover_units import RowFacts, Unit, units_of
from spark_bridge.job import Application, Job, pack_application
from spark_bridge.plan import BackfillPlan
from spark_bridge.planning import make_plan
from spark_bridge.read import consumer_opener
from spark_bridge.records import ORDER, RESULT, RESULT_KINDS, STAGE
from spark_bridge.task_run import StageRun, tasks_of
from streams.admin import LiveAdmin
from streams.config import StreamsConfig
from topology import Topology

ATTEMPTS_MAX = 4
BATCH_ROWS = 50

Row = dict[str, Any]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def plan_of(topology: Topology, settings: Mapping[str, Any], backfill_id: str) -> BackfillPlan:
    """Plan a backfill of everything that is decided now, and make the internal topics."""
    application = Application.of(topology, settings)
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
    job = Job(pack_application(topology, config), plan.to_text(), ())
    rows: list[Row] = []
    for stage in plan.stages:
        rows += _stage(replace(job, stage=stage), rows)
    rows = [{name: row[name] for name in RESULT.names} for row in rows if row["kind"] in KINDS]
    application = Application.of(topology, settings)
    return LocalResults(LocalFrame(rows, units_of(application, plan)), plan)


KINDS = frozenset(RESULT_KINDS)


def _stage(job: Job, before: Sequence[Row]) -> list[Row]:
    application, plan = job.open()
    topics = [application.plans[sub].topics for sub in job.stage]
    read = {topic for sub in topics for topic in sub.all_sources}
    is_circle = not read.isdisjoint(t for sub in topics for t in sub.repartition_sinks)
    made: list[Row] = []
    for number in range(1 if is_circle else tasks_of(topics[0].all_sources, plan)):
        mine = [
            row
            for row in before
            if row["kind"] == "record"
            and row["topic"] in read
            and (is_circle or row["partition"] == number)
        ]
        mine.sort(key=itemgetter(*ORDER))
        opener = consumer_opener(application.config)
        run = StageRun(job, application, plan, number, opener)
        given = [pa.RecordBatch.from_pylist(mine, schema=STAGE)] if mine else []
        for batch in run.run(iter(given)):
            made += batch.to_pylist()
    return made


def batches_of(rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """Small batches, so that a fault can come between two."""
    for start in range(0, len(rows), BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(list(rows[start : start + BATCH_ROWS]), schema=RESULT)


@dataclass(frozen=True)
class LocalFrame:
    """Rows by units, as Spark has them by its partitions."""

    rows: Sequence[Row]
    units: Sequence[Unit]

    def of(self, unit: Unit) -> list[Row]:
        """The rows of one unit."""
        return [row for row in self.rows if (row["sub"], row["d"]) in unit.tasks]

    def mapInArrow(self, work: Work, ddl: str) -> LocalJob:  # noqa: N802 - Spark's name
        """What Spark's frame has."""
        return LocalJob(self, work)

    def facts(self) -> RowFacts:
        """As `RowFacts.of` asks Spark."""
        counts: dict[tuple[int, int], int] = {}
        oldest: dict[tuple[str, str], int] = {}
        for row in self.rows:
            task, topic = (row["sub"], row["d"]), (row["kind"], row["topic"])
            counts[task] = counts.get(task, 0) + 1
            oldest[topic] = min(oldest.get(topic, row["timestamp"]), row["timestamp"])
        return RowFacts(counts, oldest)


@dataclass(frozen=True)
class LocalJob:
    """One task for each unit, each as often as Spark tries it."""

    frame: LocalFrame
    work: Work

    def collect(self) -> list[Row]:
        """Run the tasks."""
        found: list[Row] = []
        for unit in self.frame.units:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    for batch in self.work(batches_of(self.frame.of(unit))):
                        found += batch.to_pylist()
                    break
                except Exception:
                    if attempt == ATTEMPTS_MAX:
                        raise
        return found


@dataclass(frozen=True)
class LocalResults:
    """What a hand-over takes (see `spark_bridge.records.Results`)."""

    frame: Any
    plan: BackfillPlan

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, unit by unit."""
        for unit in self.frame.units:
            yield from batches_of(self.frame.of(unit))
