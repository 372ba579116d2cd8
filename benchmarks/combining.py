"""What combining before a repartition topic saves: ``python -m benchmarks.combining``.

A sum per key behind `select_key`, once with partial results and once with each record written, in
turns over the same input. The sums of every run are compared with a recount.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import click

from benchmarks.jobs.moved import job_of
from benchmarks.measure.cluster import cluster
from benchmarks.peers.commands import headrace
from benchmarks.peers.peer import Order, Variant
from benchmarks.plan import Task
from benchmarks.results import Run
from benchmarks.throughput import Benchmark

ON, OFF = "combine.before.repartition", "none"


def command(optimization: str, variant: Variant, order: Order) -> list[str]:
    """A worker with the rewrite or without it."""
    return [*headrace(variant, order), "--set", f"topology.optimization={optimization}"]


def told(name: str, ratios: Sequence[float]) -> str:
    """The median of some ratios, and how far they are apart."""
    return f"  {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


@click.command()
@click.option("--bootstrap", help="A cluster to run on; by default a broker of one's own.")
@click.option("--records", default=300_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("--partitions", default=1, show_default=True)
@click.option("--keys", multiple=True, type=int, default=(100, 10_000), show_default=True)
def main(
    bootstrap: str | None, records: int, pairs: int, partitions: int, keys: tuple[int, ...]
) -> None:
    """Measure sums with the rewrite over sums without it."""
    with cluster(bootstrap) as place:
        for accounts in keys:
            job = job_of(accounts, records)
            variant = Variant("headrace")
            found: dict[str, list[Run]] = {ON: [], OFF: []}
            task = Task(job, job.title, records, (variant,), pairs)
            peers = {"headrace": headrace}
            benchmark = Benchmark(place, task, peers, partitions)
            for number in range(pairs):
                for optimization in (ON, OFF) if number % 2 else (OFF, ON):
                    peers["headrace"] = partial(command, optimization)
                    run = benchmark.run(variant)
                    assert not run.wrong, run.wrong
                    found[optimization].append(run)
                    click.echo(
                        f"  {optimization}: {run.whole_s:.1f} s, {run.cpu_s:.1f} CPU-s, "
                        f"broker {run.broker_cpu_s or 0:.1f} CPU-s, {run.memory >> 20} MiB",
                        err=True,
                    )
            benchmark.close()
            both = list(zip(found[ON], found[OFF], strict=True))
            click.echo(f"{job.title}, combined over not, median (lowest-highest):")
            click.echo(told("records per second", [b.whole_s / a.whole_s for a, b in both]))
            click.echo(told("records per CPU-second", [b.cpu_s / a.cpu_s for a, b in both]))


if __name__ == "__main__":
    main()
