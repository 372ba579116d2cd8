"""Savings of partial aggregates before a repartition topic: ``python -m benchmarks.combining``.

A sum per key behind `select_key`, once with partial results and once with each record written, in
turns over the same input. The sums of every run are compared with a recount.
"""

from __future__ import annotations

import click

from benchmarks.jobs.moved import job_of
from benchmarks.measure.cluster import open_cluster
from benchmarks.pairs import compare

SETTINGS = (
    "topology.optimization=combine.before.repartition",
    "topology.optimization=none",
)


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--records", default=300_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("--partitions", default=1, show_default=True)
@click.option("--keys", multiple=True, type=int, default=(100, 10_000), show_default=True)
def main(
    bootstrap: str | None, records: int, pairs: int, partitions: int, keys: tuple[int, ...]
) -> None:
    """Measure sums with the rewrite over sums without it."""
    with open_cluster(bootstrap) as cluster:
        for accounts in keys:
            job = job_of(accounts, records)
            compare(cluster, job, SETTINGS, pairs=pairs, partitions=partitions)


if __name__ == "__main__":
    main()
