"""What Spark does between the stages of a backfill: sorted packs go to the task that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from headrace.spark_bridge.plan.job import StageJob
from headrace.spark_bridge.read import OpenConsumer
from headrace.spark_bridge.records.packs import ORDER, PACK, RECORD, Label, opened, packed_records
from headrace.spark_bridge.records.results import unpacked
from headrace.spark_bridge.run import task_run
from headrace.spark_bridge.run.task_run import StageRun

Pack = dict[str, Any]
"""The columns of a row of packs."""

RECORDS_EACH = 3
"""So few that the borders of packs fall everywhere."""


def run_stage(job: StageJob, before: Sequence[Pack], open_consumer: OpenConsumer) -> list[Pack]:
    """Run the tasks of a stage, one after the other."""
    application, plan = job.open()
    read = {t for sub in job.stage for t in application.plans[sub].topics.all_sources}
    is_circle = application.writes_to_itself(job.stage)
    made: list[Pack] = []
    for number in range(1 if is_circle else len(application.tasks(job.stage, plan))):
        mine = [
            part
            for pack in before
            if pack["kind"] == "record"
            and pack["topic"] in read
            and (is_circle or pack["partition"] == number)
            for part in _parts(pack)
        ]
        mine.sort(key=itemgetter(*ORDER))
        run = StageRun(job, application, plan, number, open_consumer)
        with patch.object(task_run, "CHECK_RECORDS", 1):  # rows are written after each run
            for batch in run.run(_batches(mine)):
                assert batch.schema == PACK
                made += batch.to_pylist()
    return made


def _parts(pack: Pack) -> Iterator[Pack]:
    records = opened(pack["data"])
    assert records.schema == RECORD
    label = Label(pack["kind"], pack["sub"], pack["d"], pack["topic"])
    for start in range(0, records.num_rows, RECORDS_EACH):
        part = records.slice(start, RECORDS_EACH)
        places = [pack["partition"]] * part.num_rows
        for one in packed_records(label, pack["number"] + start, part, pa.array(places).to_numpy()):
            yield dict(zip(PACK.names, one, strict=True))


def _batches(packs: Sequence[Pack]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(packs), 5):
        yield pa.RecordBatch.from_pylist(list(packs[start : start + 5]), schema=PACK)


def rows_of(packs: Sequence[Pack]) -> list[dict[str, Any]]:
    """The rows of packs, in the columns of `headrace.spark_bridge.records.results.RESULT`."""
    return [row for batch in unpacked(_batches(packs)) for row in batch.to_pylist()]
