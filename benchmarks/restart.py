"""How long a killed application is away: ``python -m benchmarks.restart``.

An application under exactly-once fills its state, goes on with a trickle of input, and is killed in
the middle of a transaction. It is started again over its local state, and once more over an empty
state directory, for comparison. With a full restore the time grows with the state; with local state
that survives it should not.
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
    """Kill an application of so many keys, and start it with its local state and without."""
    name = f"bench-restart-{secrets.token_hex(3)}"
    source = f"{name}-in"
    cluster.create(source, f"{name}-output", partitions=partitions)
    cluster.fill(source, ((b'"key-%08d"' % n, b"%d" % n, START_MS) for n in range(keys)))

    def start(state: Path) -> Service:
        # The identity is the pod's, not the disk's: a new disk must not wait for the old member.
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
@click.option("--keys", default=1_000_000, show_default=True, help="State; also a tenth of it.")
@click.option("--partitions", default=1, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(bootstrap: str | None, keys: int, partitions: int, path: Path | None) -> None:
    """Measure restarts after kill -9, with local state and without."""
    with open_cluster(bootstrap) as cluster:
        results = [r for n in (keys // 10, keys) for r in measured(cluster, n, partitions)]
    Console().print(restart_table(results))
    if path is not None:
        path.write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
