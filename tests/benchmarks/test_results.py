"""Ratios: of equal settings, round by round, and the worst shape first."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.shape import Shape
from benchmarks.measure.noise import Noise
from benchmarks.page import figures
from benchmarks.peers.commands import of_checkout
from benchmarks.peers.peer import RunSpec, Variant
from benchmarks.plan import FULL, QUICK, Selection, job_runs
from benchmarks.report import tables
from benchmarks.results import MIN_ROUNDS, JobResult, Report, Run, Series, comparisons, scaling
from benchmarks.run import main

SAMPLES = [(5000 + n) << 20 for n in range(21)]


def run(end_to_end_s: float, memory: int = 100) -> Run:
    return Run(1000, end_to_end_s, end_to_end_s / 2, end_to_end_s, memory, None, 1.0)


def series(peer: str, *runs: Run | None, settings: str = "exactly-once") -> Series:
    return Series(f"{peer}, {settings}", settings, peer, list(runs))


def of_shape(name: str, own_s: float, peer_s: float, rounds: int = MIN_ROUNDS) -> JobResult:
    own = series("headrace", *[run(own_s, memory=int(own_s))] * rounds)
    peer = series("kafka-streams", *[run(peer_s)] * rounds)
    return JobResult("job", "Job", 1000, [own, peer], Shape(name, 1000, 10, late=0.1), 0.44)


def report(*jobs: JobResult) -> Report:
    return Report("machine", {}, False, 1.0, Noise(1, 1, 1), list(jobs), [], [], MIN_ROUNDS)


def printed(of: Report) -> str:
    console = Console(file=StringIO(), width=250)
    for table in tables(of):
        console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_ratios_are_of_equal_settings_and_taken_round_by_round() -> None:
    own = series("headrace", run(1), run(2), run(3))
    peer = series("quix", run(2), run(2), run(12))
    other = series("quix", *[run(9)] * 3, settings="at-least-once")
    (found,) = comparisons([JobResult("job", "Job", 1000, [own, peer, other])])
    assert (found.other, found.end_to_end, found.memory) == (
        "quix",
        (2.0, 1.0, 4.0),
        (1.0, 1.0, 1.0),
    )
    assert found.steady == found.end_to_end


def test_fewer_than_three_rounds_have_no_ratio() -> None:
    own = series("headrace", None, run(1), run(1))
    peer = series("quix", run(7), run(3), run(3))
    result = JobResult("job", "Job", 1000, [own, peer])
    assert not comparisons([result])
    assert [one.end_to_end for one in comparisons([result], min_rounds=1)] == [(3.0, 3.0, 3.0)]
    text = printed(report(of_shape("few", 7, 28, rounds=2)))
    assert "No ratios: they require 3 rounds" in text
    assert "4.00" not in text
    assert "143" in text  # records per second of single rounds are listed


def test_the_worst_ratio_of_a_job_is_first_and_shapes_follow_worst_first() -> None:
    found = comparisons([of_shape("a", 10, 30), of_shape("b", 40, 60), of_shape("c", 10, 20)])
    assert [one.shape for one in found] == ["worst of 3 shapes", "b", "c", "a"]
    assert [one.end_to_end[0] for one in found] == [1.5, 1.5, 2.0, 3.0]
    assert found[0].memory[0] == max(one.memory[0] for one in found[1:]) == 0.4


def test_tables_and_page_have_shapes_seeds_and_memory_over_time() -> None:
    long = series("headrace", Run(1000, 9, 3, 3, 100, None, 1.0, memory_series=SAMPLES))
    of = report(
        of_shape("a", 10, 30), of_shape("b", 40, 60), JobResult("job", "Job, long", 1000, [long])
    )
    for text in (printed(of), figures(of)):
        assert text.index("worst of 2 shapes") < text.index("1,000 records, 10 keys, uniform")
        assert "10% late, seed 20240229" in text
        assert text.index(" 5,000 ") < text.index(" 5,010 ") < text.index(" 5,020 ")
    assert msgspec.json.decode(json.dumps(asdict(of)), type=Report) == of


def test_the_first_shape_of_every_job_runs_before_the_others() -> None:
    chosen = list(job_runs(FULL, Selection()))
    assert [job_run.job.name for job_run in chosen[: len(JOBS)]] == list(JOBS)
    for job_run in chosen[: len(JOBS)]:
        assert job_run.shape == job_run.job.shapes[0]
        assert job_run.rounds >= MIN_ROUNDS
    fixed = [(job_run.job.name, job_run.shape) for job_run in chosen if not job_run.is_long]
    assert len(fixed) == len(set(fixed)) == sum(len(job.shapes) for job in JOBS.values())
    long = {
        (job_run.partitions, v.workers)
        for job_run in chosen
        if job_run.is_long
        for v in job_run.variants
    }
    assert long == {(2, 1), (2, 2), (4, 1), (4, 2)}


def test_a_jvm_gets_warm() -> None:
    for name in ("windows", "stream_table", "stream_stream", "sessions", "sliding"):
        assert max(shape.records for shape in JOBS[name].shapes) >= 1_000_000
    assert min(shape.records for shape in JOBS["foreign_key"].shapes) >= 220_000


def test_a_quick_benchmark_has_one_shape_of_each_job() -> None:
    chosen = list(job_runs(QUICK, Selection()))
    assert len({job_run.job.name for job_run in chosen}) == len(chosen)
    assert all(job_run.rounds == 1 for job_run in chosen)


def test_random_shapes_are_selected_by_their_seed() -> None:
    selection = Selection(shapes=["random"], seed=5)
    chosen = list(job_runs(FULL, selection))
    assert [job_run.job.name for job_run in chosen] == list(JOBS)
    assert {job_run.shape.seed for job_run in chosen} == {5}
    assert [job_run.shape for job_run in job_runs(FULL, selection)] == [
        job_run.shape for job_run in chosen
    ]


@pytest.mark.parametrize(("names", "repeated"), [((), 5), (("words",), 12)])
def test_later_rounds_have_ratios_of_caches_and_with_single_jobs_all(
    names: tuple[str, ...], repeated: int
) -> None:
    job_run = next(
        job_run for job_run in job_runs(FULL, Selection(names)) if job_run.job.name == "words"
    )
    assert job_run.in_round(0) == job_run.variants
    assert len(job_run.in_round(1)) == repeated
    assert [variant.name for variant in job_run.in_round(1)[:5]] == [
        "headrace, exactly-once, caches",
        "checkout, exactly-once, caches",
        "kafka-streams, exactly-once, caches",
        "by hand, exactly-once, caches",
        "by hand combined, exactly-once, caches",
    ]


def test_more_workers_are_compared_with_one_of_the_same_peer() -> None:
    of_one = series("headrace", *[run(4)] * 3)
    of_two = series("headrace", *[run(2)] * 3, settings="exactly-once, 2 workers")
    other = series("kafka-streams", *[run(1)] * 3, settings="exactly-once, 2 workers")
    result = JobResult("job", "Job", 1000, [of_one, of_two, other])
    assert scaling([result]) == [("Job", "headrace", (2.0, 2.0, 2.0), (2.0, 2.0, 2.0))]
    assert not scaling([result], min_rounds=4)
    assert "2 workers / 1 worker" in printed(report(result))


def test_long_runs_are_selected_with_their_rounds() -> None:
    chosen = list(job_runs(FULL, Selection(rounds=3, is_long=True)))
    assert {job_run.rounds for job_run in chosen} == {3}
    assert all(job_run.is_long for job_run in chosen)
    (of_sums,) = {job_run.job.name for job_run in job_runs(FULL, Selection(["sum"], is_long=True))}
    assert of_sums == "sum"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--shape", "zipf"], "Remove --shape"),
        (["--seed", "5"], "Remove --shape"),
        (["--quick"], "Remove --shape"),
        (["--job", "windows"], "requires one of the jobs words, sum"),
    ],
)
def test_long_runs_reject_options_without_effect(option: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["--long", *option])
    assert done.exit_code == 2
    assert message in done.output


def test_another_checkout_runs_with_its_own_python() -> None:
    spec = RunSpec("sum", "b:1", "run", "run", "out", Path("state"))
    command = of_checkout(Path("/other"))(Variant("checkout"), spec)
    assert command[:3] == ["/other/.venv/bin/python", "-m", "benchmarks.service"]
