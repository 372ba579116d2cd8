"""Cost of `stream.time=slowest`: ``python -m benchmarks.event_time``.

Jobs with a repartition topic, once with `slowest` and once with `fastest`, in turns over the same
input: time, processor time, and bytes that the broker stores, with results compared with a recount.
Then the latency of a steady stream.
"""

from __future__ import annotations

from dataclasses import replace

import click

from benchmarks.jobs.moved import MOVED_WINDOWS, job_of
from benchmarks.jobs.words import JOBS as WORDS
from benchmarks.latency import WARMING_S, headrace_runner, measured
from benchmarks.measure.cluster import open_cluster
from benchmarks.pairs import compare

SETTINGS = ("stream.time=slowest", "stream.time=fastest")
WORDS_SHARE = 4
"""A sentence is eight records in the repartition topic."""


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
        replace(words, shapes=(words.shape(records // WORDS_SHARE),)),
        job_of(10_000, records),
        replace(MOVED_WINDOWS, shapes=(MOVED_WINDOWS.shape(records),)),
    )
    with open_cluster(bootstrap) as cluster:
        for job in jobs:
            if not names or job.name in names:
                compare(cluster, job, SETTINGS, pairs=pairs, partitions=partitions)
        if names and "latency" not in names:
            return
        runners = [headrace_runner([setting]) for setting in SETTINGS]
        for latency in measured(
            cluster,
            rate,
            seconds,
            runners,
            pairs,
            applications=("moved_last_windows",),
            partitions=partitions,
            warming_s=WARMING_S,
        ):
            click.echo(
                f"{latency.runner}: p50 {latency.p50:.0f} ms, p99 {latency.p99:.0f} ms, "
                f"p99.9 {latency.p999:.0f} ms"
            )


if __name__ == "__main__":
    main()
