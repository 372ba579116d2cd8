"""Cost of the check of topic identities at a commit: ``python -m benchmarks.topic_check_cost``.

Each pair has a run with the check and a run without it, on the same input, in separate processes.
The order alternates, because the speed of a machine changes from minute to minute, and ratios are
taken within a pair. Run it on an idle machine: a ratio is significant only if its deviation is
smaller than its difference from 1.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping

import click
from rich.console import Console
from rich.table import Table

from benchmarks.jobs.catalogue import JOBS
from benchmarks.measure.cluster import open_cluster
from benchmarks.peers.commands import Command, headrace
from benchmarks.peers.peer import RunSpec, Variant
from benchmarks.plan import JobRun
from benchmarks.results import Figure, JobResult
from benchmarks.throughput import measure

WITH_CHECK, WITHOUT_CHECK = Variant("headrace", caches=False), Variant("by hand", caches=False)
"""The second variant runs `benchmarks.peers.without_topic_check` under the name of a peer."""
MEASURED_JOBS = ("stateless", "sum")


def _without_check(variant: Variant, spec: RunSpec) -> list[str]:
    command = headrace(variant, spec)
    other = {"benchmarks.service": "benchmarks.peers.without_topic_check"}
    return [other.get(argument, argument) for argument in command]


PEERS: Mapping[str, Command] = {"headrace": headrace, "by hand": _without_check}


def _table(results: list[JobResult]) -> Table:
    table = Table(title="with the check / without it: median, minimum-maximum, deviation")
    for title in ("job", "figure", "checked", "unchecked", "ratio", "range", "deviation"):
        table.add_column(title, justify="left" if title in ("job", "figure") else "right")
    figures: dict[str, Figure] = {
        "records/s": lambda run: run.steady_rate,
        "records/CPU-s": lambda run: run.records / run.cpu_s,
    }
    for one in results:
        checked, unchecked = one.series
        for name, figure in figures.items():
            ratios = checked.ratios(unchecked, figure)
            spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
            table.add_row(
                one.title,
                name,
                f"{checked.median(figure):,.0f}",
                f"{unchecked.median(figure):,.0f}",
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.3f}-{max(ratios):.3f}",
                f"{spread:.3f}",
            )
    return table


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--records", type=int, help="Input records of each job.")
@click.option("--pairs", default=6, show_default=True, help="Number of pairs of runs.")
@click.option("--partitions", default=1, show_default=True, help="Partitions of each topic.")
def main(bootstrap: str | None, records: int | None, pairs: int, partitions: int) -> None:
    """Measure the cost of the check of topic identities at a commit."""
    console = Console(width=140)
    results = []
    with open_cluster(bootstrap) as cluster:
        for name in MEASURED_JOBS:
            job = JOBS[name]
            shape = job.shape(records or job.shapes[0].records)
            job_run = JobRun(job, job.title, shape, (WITH_CHECK, WITHOUT_CHECK), pairs)
            results.append(
                measure(cluster, job_run, PEERS, partitions=partitions, log=console.print)
            )
    console.print(_table(results))
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores shared with the broker, {partitions=}"
    )
    runs = [run for one in results for series in one.series for run in series.runs]
    if any(run is None or run.wrong for run in runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
