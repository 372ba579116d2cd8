"""Savings of partial aggregates before a repartition topic.

``python -m benchmarks.pre_aggregation`` runs a sum per key after `select_key` in pairs on the same
input: once with partial aggregates, and once with each record written to the repartition topic. It
prints the ratios, and compares the sums of every run with a recount.
"""

from __future__ import annotations

import click

from benchmarks.jobs.repartitioned import sum_by_account
from benchmarks.measure.cluster import open_cluster
from benchmarks.pairs import compare

SETTINGS = (
    "topology.optimization=combine.before.repartition",
    "topology.optimization=none",
)


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--records", default=300_000, show_default=True, help="Input records.")
@click.option("--pairs", default=3, show_default=True, help="Number of pairs of runs.")
@click.option("--partitions", default=1, show_default=True)
@click.option("--keys", multiple=True, type=int, default=(100, 10_000), show_default=True)
def main(
    bootstrap: str | None, records: int, pairs: int, partitions: int, keys: tuple[int, ...]
) -> None:
    """Compare a sum with partial aggregates and without."""
    with open_cluster(bootstrap) as cluster:
        for accounts in keys:
            job = sum_by_account(accounts, records)
            compare(cluster, job, SETTINGS, pairs=pairs, partitions=partitions)


if __name__ == "__main__":
    main()
