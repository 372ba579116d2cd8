"""Cost of `stream.time=slowest`: ``python -m benchmarks.event_time``.

Runs jobs with a repartition topic in pairs, once with `slowest` and once with `fastest`, on the
same input, and compares their outputs with a recount. It prints ratios of throughput, of CPU time
and of the bytes that the broker stores, and then the latency of a steady stream.
"""

from __future__ import annotations

from dataclasses import replace

import click

from benchmarks.jobs.repartitioned import REPARTITIONED_WINDOWS, sum_by_account
from benchmarks.jobs.words import JOBS as WORDS
from benchmarks.latency import BROKER_WARM_UP_S, headrace_runner, measure_latency
from benchmarks.measure.cluster import open_cluster
from benchmarks.pairs import compare

SETTINGS = ("stream.time=slowest", "stream.time=fastest")
WORDS_DIVISOR = 4
"""Divisor of the number of sentences, each of which is eight records in the repartition topic."""


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--records", default=1_600_000, show_default=True)
@click.option("--pairs", default=5, show_default=True)
@click.option("--partitions", default=2, show_default=True)
@click.option("--job", "names", multiple=True, help="Job, or `latency`; repeatable.")
@click.option("--rate", default=1_000, show_default=True, help="Records per second, for latency.")
@click.option(
    "--seconds", default=15, show_default=True, help="Duration of a measurement of latency."
)
def main(
    bootstrap: str | None,
    records: int,
    pairs: int,
    partitions: int,
    names: tuple[str, ...],
    rate: int,
    seconds: int,
) -> None:
    """Compare slowest with fastest in jobs that read a repartition topic."""
    (words,) = WORDS
    jobs = (
        replace(words, shapes=(words.shape(records // WORDS_DIVISOR),)),
        sum_by_account(10_000, records),
        replace(REPARTITIONED_WINDOWS, shapes=(REPARTITIONED_WINDOWS.shape(records),)),
    )
    with open_cluster(bootstrap) as cluster:
        for job in jobs:
            if not names or job.name in names:
                compare(cluster, job, SETTINGS, pairs=pairs, partitions=partitions)
        if names and "latency" not in names:
            return
        runners = [headrace_runner([setting]) for setting in SETTINGS]
        for latency in measure_latency(
            cluster,
            rate,
            seconds,
            runners,
            pairs,
            applications=("repartitioned_last_windows",),
            partitions=partitions,
            broker_warm_up_s=BROKER_WARM_UP_S,
        ):
            click.echo(
                f"{latency.runner}: p50 {latency.p50:.0f} ms, p99 {latency.p99:.0f} ms, "
                f"p99.9 {latency.p999:.0f} ms"
            )


if __name__ == "__main__":
    main()
