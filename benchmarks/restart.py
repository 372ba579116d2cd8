"""Time of a restart after kill -9: ``python -m benchmarks.restart``.

An application with exactly-once fills its state, continues with few records per second, and is
killed in an open transaction. It restarts with its local state, is killed again, and restarts with
an empty state directory, which it restores completely. The output has the times from the start of
the process until it is initialized, is running, and has made its first commit.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from benchmarks.jobs.shape import START_MS
from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.load import steady_load
from benchmarks.measure.processes import ApplicationProcess
from benchmarks.report import restart_table
from benchmarks.results import Restart

LOAD_PER_S = 200
LOAD_S = 2.0
"""Time of the load before each kill."""


def measure_restarts(cluster: Cluster, keys: int, partitions: int) -> list[Restart]:
    """Kill and restart an application, with its local state and without."""
    name = f"bench-restart-{secrets.token_hex(3)}"
    source = f"{name}-in"
    cluster.create(source, f"{name}-output", partitions=partitions)
    cluster.fill(source, ((b'"key-%08d"' % n, b"%d" % n, START_MS) for n in range(keys)))

    def start(state: Path) -> ApplicationProcess:
        # Without a worker id, a worker with a new disk would wait until the old member times out.
        options = ["--set", "worker.id=bench"]
        return ApplicationProcess(
            "last_value",
            bootstrap=cluster.bootstrap,
            run=name,
            source=name,
            state=state,
            options=options,
        )

    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as local,
        tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as empty,
        steady_load(
            cluster.bootstrap,
            source,
            per_s=LOAD_PER_S,
            key_of=lambda number: number * 7919 % keys,
            partitions=0,
        ),
    ):
        process = start(Path(local))
        process.wait_for("committed", records=keys)
        results = []
        for label, state in (("kept", Path(local)), ("empty", Path(empty))):
            time.sleep(LOAD_S)
            process.kill()
            process = start(state)
            committed_s = process.wait_for("committed")
            results.append(
                Restart(
                    keys,
                    label,
                    process.wait_for("transactions_initialised"),
                    process.wait_for("running"),
                    committed_s,
                    process.total("restored"),
                )
            )
        process.stop()
    cluster.delete(name)
    return results


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option(
    "--keys",
    default=1_000_000,
    show_default=True,
    help="Size of the state; 10 % of it is measured too.",
)
@click.option("--partitions", default=1, show_default=True, help="Partitions of each topic.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
def main(bootstrap: str | None, keys: int, partitions: int, path: Path | None) -> None:
    """Measure restarts after kill -9, with local state and without."""
    with open_cluster(bootstrap) as cluster:
        results = [r for n in (keys // 10, keys) for r in measure_restarts(cluster, n, partitions)]
    Console().print(restart_table(results))
    if path is not None:
        path.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
