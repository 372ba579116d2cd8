"""Paired runs of a job with two settings, alternating over the same input, and their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import click

from benchmarks.jobs.job import Job
from benchmarks.measure.cluster import Cluster
from benchmarks.peers.commands import headrace
from benchmarks.peers.peer import RunSpec, Variant
from benchmarks.plan import JobRun
from benchmarks.results import Run
from benchmarks.throughput import Benchmark

Ratio = Callable[[Run, Run], float]


def compare(
    cluster: Cluster, job: Job, settings: tuple[str, str], *, pairs: int, partitions: int
) -> None:
    """Run a job with two settings in turns, and print the ratios of the first to the second.

    Args:
        settings: two settings of the application, as name=value.
        pairs: number of pairs of runs; one more pair warms the broker, and does not count.
    """
    variant = Variant("headrace")
    peers = {"headrace": headrace}
    job_run = JobRun(job, job.title, job.shapes[0], (variant,), pairs)
    benchmark = Benchmark(cluster, job_run, peers, partitions)
    both: list[tuple[Run, Run]] = []
    for number in range(-1, pairs):
        runs: dict[str, Run] = {}
        for setting in settings if number % 2 else reversed(settings):
            peers["headrace"] = partial(_command, setting)
            run = runs[setting] = benchmark.run(variant)
            assert not run.wrong, run.wrong
            click.echo(
                f"  {setting}: {run.end_to_end_s:.1f} s, {run.cpu_s:.1f} CPU-s, broker "
                f"{run.broker_cpu_s or 0:.1f} CPU-s, {run.memory >> 20} MiB, stored "
                f"{run.stored_bytes >> 10} KiB{' (warm-up)' if number < 0 else ''}",
                err=True,
            )
        if number >= 0:
            both.append((runs[settings[0]], runs[settings[1]]))
    benchmark.close()
    first, second = settings
    click.echo(f"{job.title}, {first} over {second}, median (minimum-maximum) of {pairs} pairs:")
    _print("records per second", both, lambda a, b: b.end_to_end_s / a.end_to_end_s)
    _print("records per second, steady state", both, lambda a, b: b.steady_s / a.steady_s)
    _print("records per CPU-second", both, lambda a, b: b.cpu_s / a.cpu_s)
    if all(run.stored_bytes for pair in both for run in pair):
        _print("stored bytes", both, lambda a, b: a.stored_bytes / b.stored_bytes)


def _command(setting: str, variant: Variant, spec: RunSpec) -> list[str]:
    return [*headrace(variant, spec), "--set", setting]


def _print(name: str, both: Sequence[tuple[Run, Run]], ratio: Ratio) -> None:
    found = [ratio(a, b) for a, b in both]
    median = statistics.median(found)
    click.echo(f"  {name}: {median:.3f} ({min(found):.3f}-{max(found):.3f})")
