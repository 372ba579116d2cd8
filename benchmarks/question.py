"""What a commit's question costs which topics there are: ``python -m benchmarks.question``.

Each pair runs an application once with the question and once without it, over the same input, each
in a process of its own; which comes first changes from pair to pair, as the machine's speed changes
from one minute to the next. The ratio is taken within a pair. It is worth something on a quiet
machine, and with a spread that is smaller than what it differs from 1 by.
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

ASKED, UNASKED = Variant("headrace", caches=False), Variant("by hand", caches=False)
"""The second variant uses the name of a peer for another program of Headrace."""
JOBS_ASKED = ("stateless", "sum")


def _unasked(variant: Variant, spec: RunSpec) -> list[str]:
    command = headrace(variant, spec)
    return ["benchmarks.peers.unasked" if w == "benchmarks.service" else w for w in command]


PEERS: Mapping[str, Command] = {"headrace": headrace, "by hand": _unasked}


def _table(results: list[JobResult]) -> Table:
    table = Table(title="with the question over without it: median, lowest-highest, deviation")
    for title in ("job", "figure", "asked", "not asked", "ratio", "range", "deviation"):
        table.add_column(title, justify="left" if title in ("job", "figure") else "right")
    figures: dict[str, Figure] = {
        "records/s": lambda run: run.steady_rate,
        "records/CPU-s": lambda run: run.records / run.cpu_s,
    }
    for one in results:
        asked, unasked = one.series
        for name, figure in figures.items():
            ratios = asked.ratios(unasked, figure)
            spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
            table.add_row(
                one.title,
                name,
                f"{asked.median(figure):,.0f}",
                f"{unasked.median(figure):,.0f}",
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
    """Compare commits that ask which topics there are with commits that do not."""
    console = Console(width=140)
    results = []
    with open_cluster(bootstrap) as cluster:
        for name in JOBS_ASKED:
            job = JOBS[name]
            shape = job.shape(records or job.shapes[0].records)
            job_run = JobRun(job, job.title, shape, (ASKED, UNASKED), pairs)
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
