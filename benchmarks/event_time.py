"""What `stream.time=slowest` costs: ``python -m benchmarks.event_time``.

Jobs with a repartition topic, once with `slowest` and once with `fastest`, in turns over the same
input: time, processor time, and what the broker stores. Then the latency of a steady stream. The
results of every run are compared with a recount.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import click

from benchmarks.jobs.job import Job
from benchmarks.jobs.moved import MOVED_WINDOWS, job_of
from benchmarks.jobs.words import JOBS as WORDS
from benchmarks.latency import WARMING_S, measured, own
from benchmarks.measure.cluster import Cluster, cluster
from benchmarks.peers.commands import headrace
from benchmarks.peers.peer import Order, Variant
from benchmarks.plan import Task
from benchmarks.results import Run
from benchmarks.throughput import Benchmark

SLOWEST, FASTEST = "slowest", "fastest"
WORDS_SHARE = 4
"""A sentence is eight records on their way."""


def command(stream_time: str, variant: Variant, order: Order) -> list[str]:
    return [*headrace(variant, order), "--set", f"stream.time={stream_time}"]


def told(name: str, ratios: Sequence[float]) -> str:
    """The median of some ratios, and how far they are apart."""
    return f"  {name}: {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def compare(place: Cluster, job: Job, pairs: int, partitions: int) -> None:
    """Print the ratios of a job, `slowest` over `fastest`."""
    variant = Variant("headrace")
    found: dict[str, list[Run]] = {SLOWEST: [], FASTEST: []}
    peers = {"headrace": headrace}
    task = Task(job, job.title, job.records, (variant,), pairs)
    benchmark = Benchmark(place, task, peers, partitions)
    # The first pair warms the broker and the files of the system, and does not count.
    for number in range(-1, pairs):
        for stream_time in (SLOWEST, FASTEST) if number % 2 else (FASTEST, SLOWEST):
            peers["headrace"] = partial(command, stream_time)
            run = benchmark.run(variant)
            assert not run.wrong, run.wrong
            if number >= 0:
                found[stream_time].append(run)
                click.echo(
                    f"  {stream_time}: {run.whole_s:.1f} s, {run.cpu_s:.1f} CPU-s, broker "
                    f"{run.broker_cpu_s or 0:.1f} CPU-s, {run.stored_bytes >> 10} KiB",
                    err=True,
                )
    benchmark.close()
    both = list(zip(found[SLOWEST], found[FASTEST], strict=True))
    click.echo(f"{job.title}, slowest over fastest, median (lowest-highest) of {pairs} pairs:")
    click.echo(told("records per second", [b.whole_s / a.whole_s for a, b in both]))
    click.echo(told("records per second, middle", [b.middle_s / a.middle_s for a, b in both]))
    click.echo(told("records per CPU-second", [b.cpu_s / a.cpu_s for a, b in both]))
    if all(run.stored_bytes for pair in both for run in pair):
        click.echo(told("stored bytes", [a.stored_bytes / b.stored_bytes for a, b in both]))


@click.command()
@click.option("--bootstrap", help="A cluster to run on; by default a broker of one's own.")
@click.option("--records", default=1_600_000, show_default=True)
@click.option("--pairs", default=5, show_default=True)
@click.option("--partitions", default=2, show_default=True)
@click.option("--job", "names", multiple=True, help="Only these; `latency` is one of them.")
@click.option("--rate", default=1_000, show_default=True, help="Records per second, for latency.")
@click.option("--seconds", default=15, show_default=True, help="How long to measure latency.")
def main(
    bootstrap: str | None,
    records: int,
    pairs: int,
    partitions: int,
    names: tuple[str, ...],
    rate: int,
    seconds: int,
) -> None:
    """Measure jobs behind a repartition topic with slowest over those with fastest."""
    (words,) = WORDS
    jobs = (
        replace(words, records=records // WORDS_SHARE),
        job_of(10_000, records),
        replace(MOVED_WINDOWS, records=records),
    )
    with cluster(bootstrap) as place:
        for job in jobs:
            if not names or job.name in names:
                compare(place, job, pairs, partitions)
        if names and "latency" not in names:
            return
        runners = [own([f"stream.time={one}"]) for one in (SLOWEST, FASTEST)]
        for latency in measured(
            place,
            rate,
            seconds,
            runners,
            pairs,
            applications=("moved_last_windows",),
            partitions=partitions,
            warming_s=WARMING_S,
        ):
            click.echo(
                f"{latency.who}: p50 {latency.p50:.0f} ms, p99 {latency.p99:.0f} ms, "
                f"p99.9 {latency.p999:.0f} ms"
            )


if __name__ == "__main__":
    main()
