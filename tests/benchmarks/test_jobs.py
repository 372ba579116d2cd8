"""Each shape of each job, with few records, in the test driver."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import pytest

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.job import Dataset, Job, topic
from benchmarks.jobs.repartitioned import REPARTITIONED_WINDOWS, sum_by_account
from benchmarks.jobs.shape import LATE_MS, Shape
from headrace import TopologyTestDriver, serdes

RECORDS = 300
SEEDS = (1, 2)
REPARTITIONED_JOBS = (sum_by_account(7, RECORDS), REPARTITIONED_WINDOWS)
FIXED = [(job, shape) for job in (*JOBS.values(), *REPARTITIONED_JOBS) for shape in job.shapes]
DRAWN = [
    (job, job.ranges.draw(job.name, seed)) for job in JOBS.values() if job.ranges for seed in SEEDS
]
Arrival = tuple[int, str, bytes | None, bytes, int]


def arrivals(dataset: Dataset) -> Iterator[Arrival]:
    """Return the records of all topics in order of arrival: the highest timestamp so far."""

    def of_topic(end: str) -> Iterator[Arrival]:
        now_ms = 0
        for key, value, time_ms in dataset.inputs[end]:
            now_ms = max(now_ms, time_ms)
            yield now_ms, end, key, value, time_ms

    return heapq.merge(*map(of_topic, dataset.inputs), key=lambda arrival: arrival[0])


@pytest.mark.parametrize("caches", [False, True], ids=["each-update", "caches"])
@pytest.mark.parametrize(
    ("job", "shape"),
    FIXED + DRAWN,
    ids=[f"{job.name}-{s.name}-{s.seed}" for job, s in FIXED + DRAWN],
)
def test_the_output_equals_the_expected_output(job: Job, shape: Shape, *, caches: bool) -> None:
    dataset = job.generate(shape.scaled(RECORDS))
    expected = dataset.expected
    with TopologyTestDriver(
        job.topology("in", "out"), commit="manual" if caches else "each_record"
    ) as driver:
        for _, end, key, value, time_ms in arrivals(dataset):
            driver.input(topic("in", end)).send_bytes(key, value, timestamp=time_ms)
        driver.commit()
        records = driver.output("out", key=serdes.bytes, value=serdes.bytes).read_all()
    last = {
        record.key + record.value if expected.each_record else record.key: record.value
        for record in records
    }
    assert {key: value for key, value in last.items() if value is not None} == expected.last
    assert expected.last
    if not (caches and job.stateful) and expected.outputs is not None:
        assert len(records) == expected.outputs


@pytest.mark.parametrize("seed", range(50))
def test_a_random_shape_follows_from_its_seed_and_is_within_its_ranges(seed: int) -> None:
    for job in JOBS.values():
        assert job.ranges is not None
        shape = job.ranges.draw(job.name, seed)
        assert shape == job.ranges.draw(job.name, seed)
        assert shape.keys in range(job.ranges.keys[0] - 1, job.ranges.keys[1] + 2)
        if job.ranges.rows is not None:
            assert job.ranges.rows[0] <= shape.rows <= job.ranges.rows[1]


def test_other_seeds_draw_other_shapes() -> None:
    ranges = JOBS["windows"].ranges
    assert ranges is not None
    assert len({ranges.draw("windows", seed) for seed in range(50)}) == 50


@pytest.mark.parametrize(
    ("job", "shape"),
    [(job, shape) for job, shape in FIXED + DRAWN if shape.rows and job not in REPARTITIONED_JOBS],
    ids=lambda value: value.name,
)
def test_new_rows_per_record_are_those_of_the_shape(job: Job, shape: Shape) -> None:
    dataset = job.generate(shape.scaled(20_000))
    assert dataset.rows / dataset.records == pytest.approx(shape.rows, rel=0.25)


@pytest.mark.parametrize("name", ["windows", "sliding", "sessions", "stream_stream"])
def test_a_share_of_the_records_is_late_but_within_the_grace_period(name: str) -> None:
    job = JOBS[name]
    shape = next(shape for shape in job.shapes if shape.late)
    for rows in job.generate(shape.scaled(5_000)).inputs.values():
        now_ms, late = 0, 0
        for _, _, time_ms in rows:
            assert time_ms > now_ms - LATE_MS
            late += time_ms < now_ms
            now_ms = max(now_ms, time_ms)
        assert late / len(rows) == pytest.approx(shape.late, rel=0.3)


def test_a_seed_determines_the_records() -> None:
    for job in JOBS.values():
        shape = job.shapes[-1].scaled(200)
        other = Shape(shape.name, 200, shape.keys, shape.skew, rows=shape.rows, seed=1)
        assert job.generate(shape) == job.generate(shape)
        assert job.generate(shape).inputs != job.generate(other).inputs
