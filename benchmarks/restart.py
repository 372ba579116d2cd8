"""Time from a kill to the first new commit: ``python -m benchmarks.restart``.

An application with exactly-once fills its state, continues with few records per second, and is
killed within a transaction. It restarts with its local state, and then with an empty state
directory, for which it restores everything.
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
from benchmarks.measure.feeding import feeding
from benchmarks.measure.processes import Service
from benchmarks.report import restart_table
from benchmarks.results import Restart

TRICKLE_PER_S = 200
TRICKLE_S = 2.0


def measured(cluster: Cluster, keys: int, partitions: int) -> list[Restart]:
    """Kill an application, and start it with its local state and without."""
    name = f"bench-restart-{secrets.token_hex(3)}"
    source = f"{name}-in"
    cluster.create(source, f"{name}-output", partitions=partitions)
    cluster.fill(source, ((b'"key-%08d"' % n, b"%d" % n, START_MS) for n in range(keys)))

    def start(state: Path) -> Service:
        # Without a worker id, a worker with a new disk would wait for the old member.
        options = ["--set", "worker.id=bench"]
        return Service(
            "last_value",
            bootstrap=cluster.bootstrap,
            run=name,
            source=name,
            state=state,
            options=options,
        )

    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as kept,
        tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as empty,
        feeding(
            cluster.bootstrap,
            source,
            per_s=TRICKLE_PER_S,
            key_of=lambda number: number * 7919 % keys,
            partitions=0,
        ),
    ):
        service = start(Path(kept))
        service.wait_for("committed", records=keys)
        results = []
        for label, state in (("kept", Path(kept)), ("empty", Path(empty))):
            time.sleep(TRICKLE_S)
            service.kill()
            service = start(state)
            committed_s = service.wait_for("committed")
            results.append(
                Restart(
                    keys,
                    label,
                    service.wait_for("transactions_initialised"),
                    service.wait_for("running"),
                    committed_s,
                    service.total("restored"),
                )
            )
        service.stop()
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
@click.option("--partitions", default=1, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
def main(bootstrap: str | None, keys: int, partitions: int, path: Path | None) -> None:
    """Measure restarts after kill -9, with local state and without."""
    with open_cluster(bootstrap) as cluster:
        results = [r for n in (keys // 10, keys) for r in measured(cluster, n, partitions)]
    Console().print(restart_table(results))
    if path is not None:
        path.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
