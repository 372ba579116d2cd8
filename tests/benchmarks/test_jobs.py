"""Each job of the benchmarks, small: what comes out of its topology is what a recount says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.job import Job, Made, topic
from benchmarks.jobs.moved import MOVED_WINDOWS, job_of
from headrace import TopologyTestDriver, serdes

RECORDS = 300
FULL = {"sum_1m", "sum_100k"}
"""Programs that are here already, with fewer keys."""


RUN = sorted(JOBS.keys() - FULL)


def named(job: Job) -> str:
    return job.name


def ordered(made: Made) -> Iterator[tuple[str, bytes | None, bytes, int]]:
    rows = [(end, *row) for end, rows in made.inputs.items() for row in rows]
    return iter(sorted(rows, key=lambda row: row[3]))


@pytest.mark.parametrize("caches", [False, True], ids=["each-update", "caches"])
@pytest.mark.parametrize(
    "job", [*(JOBS[name] for name in RUN), job_of(7, RECORDS), MOVED_WINDOWS], ids=named
)
def test_a_job_ends_as_its_recount(job: Job, *, caches: bool) -> None:
    made = job.make(RECORDS)
    with TopologyTestDriver(
        job.topology("in", "out"), commit="manual" if caches else "each_record"
    ) as driver:
        for end, key, value, time_ms in ordered(made):
            driver.input(topic("in", end)).send_bytes(key, value, timestamp=time_ms)
        driver.commit()
        records = driver.output("out", key=serdes.bytes, value=serdes.bytes).read_all()
    last = {record.key: record.value for record in records}
    assert {key: value for key, value in last.items() if value is not None} == made.expected.last
    assert made.expected.last
    if not caches and made.expected.outputs is not None:
        assert len(records) == made.expected.outputs
