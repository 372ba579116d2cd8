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
from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table

from benchmarks.jobs.jobs import JOBS
from benchmarks.measure.cluster import cluster
from benchmarks.run import TABLE_WIDTH, UNCACHED, Benchmark, JobResults, Result, Variant

ASKED = Variant("asked", "benchmarks.peers.apps", UNCACHED)
UNASKED = Variant("not asked", "benchmarks.peers.unasked", UNCACHED)
JOBS_ASKED = ("stateless", "sum")


def _measure(benchmark: Benchmark, job: str, records: int, pairs: int, say: Console) -> JobResults:
    results = JobResults(job, records)
    for number in range(1, pairs + 1):
        order = (ASKED, UNASKED) if number % 2 else (UNASKED, ASKED)
        pair: dict[str, Result] = {}
        for variant in order:
            result = pair[variant.name] = benchmark.run(variant)
            say.print(
                f"  {job} {number}/{pairs} {variant.name}: {result.records_per_s:,.0f} records/s, "
                f"{result.records_per_cpu_s:,.0f} per CPU-second, {result.commits} commits"
                + (f" [red]{result.wrong}[/]" if result.wrong else "")
            )
        results.pairs.append(pair)
    benchmark.close()
    return results


def _table(results: list[JobResults]) -> Table:
    table = Table(title="with the question over without it: median, lowest-highest, deviation")
    for title in ("job", "figure", "asked", "not asked", "ratio", "range", "deviation"):
        table.add_column(title, justify="left" if title in ("job", "figure") else "right")
    picks: dict[str, Callable[[Result], float]] = {
        "records/s": lambda result: result.records_per_s,
        "records/CPU-s": lambda result: result.records_per_cpu_s,
    }
    for one in results:
        for figure, pick in picks.items():
            asked, unasked = one.of(ASKED.name, pick), one.of(UNASKED.name, pick)
            ratios = [first / second for first, second in zip(asked, unasked, strict=True)]
            spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
            table.add_row(
                JOBS[one.job].title,
                figure,
                f"{statistics.median(asked):,.0f}",
                f"{statistics.median(unasked):,.0f}",
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.3f}-{max(ratios):.3f}",
                f"{spread:.3f}",
            )
    return table


@click.command()
@click.option("--bootstrap", help="A cluster to run on; by default a broker of one's own.")
@click.option("--records", type=int, help="Input records of each job, instead of the defaults.")
@click.option("--pairs", default=6, show_default=True, help="How often both run.")
@click.option("--partitions", default=1, show_default=True, help="Of every topic.")
def main(bootstrap: str | None, records: int | None, pairs: int, partitions: int) -> None:
    """Compare commits that ask which topics there are with commits that do not."""
    say = Console(width=max(Console().width, TABLE_WIDTH))
    results = []
    with cluster(bootstrap) as place:
        for name in JOBS_ASKED:
            count = records or JOBS[name].default_records
            benchmark = Benchmark(place, JOBS[name], count, partitions)
            results.append(_measure(benchmark, name, count, pairs, say))
    say.print(_table(results))
    say.print(f"{platform.machine()}, {os.cpu_count()} cores shared with the broker, {partitions=}")
    if any(r.wrong for one in results for pair in one.pairs for r in pair.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
