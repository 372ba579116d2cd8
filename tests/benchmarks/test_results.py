"""Ratios: of equal settings, round by round, and the worst shape first."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.shape import Shape
from benchmarks.measure.noise import Noise
from benchmarks.page import figures
from benchmarks.peers.commands import of_checkout
from benchmarks.peers.peer import Order, Variant
from benchmarks.plan import FULL, QUICK, Selection, tasks
from benchmarks.report import tables
from benchmarks.results import MIN_ROUNDS, JobResult, Report, Run, Series, comparisons, scaling

SAMPLES = [(5000 + n) << 20 for n in range(21)]


def run(whole_s: float, memory: int = 100) -> Run:
    return Run(1000, whole_s, whole_s / 2, whole_s, memory, None, 1.0)


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
    assert (found.other, found.whole, found.memory) == ("quix", (2.0, 1.0, 4.0), (1.0, 1.0, 1.0))
    assert found.middle == found.whole


def test_fewer_than_three_rounds_have_no_ratio() -> None:
    own = series("headrace", None, run(1), run(1))
    peer = series("quix", run(7), run(3), run(3))
    result = JobResult("job", "Job", 1000, [own, peer])
    assert not comparisons([result])
    assert [one.whole for one in comparisons([result], min_rounds=1)] == [(3.0, 3.0, 3.0)]
    text = printed(report(of_shape("few", 7, 28, rounds=2)))
    assert "No ratios: they require 3 rounds" in text
    assert "4.00" not in text
    assert "143" in text  # records per second of single rounds are listed


def test_the_worst_ratio_of_a_job_is_first_and_shapes_follow_worst_first() -> None:
    found = comparisons([of_shape("a", 10, 30), of_shape("b", 40, 60), of_shape("c", 10, 20)])
    assert [one.shape for one in found] == ["worst of 3 shapes", "b", "c", "a"]
    assert [one.whole[0] for one in found] == [1.5, 1.5, 2.0, 3.0]
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
    chosen = list(tasks(FULL, Selection()))
    assert [task.job.name for task in chosen[: len(JOBS)]] == list(JOBS)
    for task in chosen[: len(JOBS)]:
        assert task.shape == task.job.shapes[0]
        assert task.rounds >= MIN_ROUNDS
    fixed = [(task.job.name, task.shape) for task in chosen if not task.is_long]
    assert len(fixed) == len(set(fixed)) == sum(len(job.shapes) for job in JOBS.values())
    long = {(task.partitions, v.workers) for task in chosen if task.is_long for v in task.variants}
    assert long == {(2, 1), (2, 2), (4, 1), (4, 2)}


def test_a_jvm_gets_warm() -> None:
    for name in ("windows", "stream_table", "stream_stream", "sessions", "sliding"):
        assert max(shape.records for shape in JOBS[name].shapes) >= 1_000_000
    assert min(shape.records for shape in JOBS["foreign_key"].shapes) >= 220_000


def test_a_quick_benchmark_has_one_shape_of_each_job() -> None:
    chosen = list(tasks(QUICK, Selection()))
    assert len({task.job.name for task in chosen}) == len(chosen)
    assert all(task.rounds == 1 for task in chosen)


def test_random_shapes_are_selected_by_their_seed() -> None:
    selection = Selection(shapes=["random"], seed=5)
    chosen = list(tasks(FULL, selection))
    assert [task.job.name for task in chosen] == list(JOBS)
    assert {task.shape.seed for task in chosen} == {5}
    assert [task.shape for task in tasks(FULL, selection)] == [task.shape for task in chosen]


@pytest.mark.parametrize(("names", "repeated"), [((), 5), (("words",), 12)])
def test_later_rounds_have_ratios_of_caches_and_with_single_jobs_all(
    names: tuple[str, ...], repeated: int
) -> None:
    task = next(task for task in tasks(FULL, Selection(names)) if task.job.name == "words")
    assert task.in_round(0) == task.variants
    assert len(task.in_round(1)) == repeated
    assert [variant.name for variant in task.in_round(1)[:5]] == [
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
    assert "2 workers over 1" in printed(report(result))


def test_long_runs_are_selected_with_their_rounds() -> None:
    chosen = list(tasks(FULL, Selection(rounds=3, is_long=True)))
    assert {task.rounds for task in chosen} == {3}
    assert all(task.is_long for task in chosen)


def test_another_checkout_runs_with_its_own_python() -> None:
    order = Order("sum", "b:1", "run", "run", "out", Path("state"))
    command = of_checkout(Path("/other"))(Variant("checkout"), order)
    assert command[:3] == ["/other/.venv/bin/python", "-m", "benchmarks.service"]
