"""Resident memory by number of keys: ``python -m benchmarks.memory``.

An application with exactly-once stores the last document of each key with the default serde. Each
key occurs once, in a scattered order, so that only settings limit the memory. The output has the
resident memory before the first record, its maximum, and after the last commit.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from benchmarks.jobs.job import Record
from benchmarks.jobs.shape import START_MS
from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.processes import ApplicationProcess
from benchmarks.measure.usage import resource_usage
from benchmarks.report import memory_table
from benchmarks.results import Memory

POLL_INTERVAL_S = 0.05
STRIDE = 7919
"""Distance of consecutive keys; a prime, so that each key occurs once."""


def documents(keys: int, value_bytes: int) -> Iterator[Record]:
    """Yield a document for each key."""
    rest = b"x" * max(0, value_bytes - 40)
    for number in range(keys):
        value = b'{"name":"%b","number":%d,"paid":true}' % (rest, number)
        yield b'"key-%08d"' % (number * STRIDE % keys), value, START_MS


def measure_memory(
    cluster: Cluster, keys: int, *, value_bytes: int, partitions: int, settings: Sequence[str] = ()
) -> Memory:
    """Fill the state of an application, and sample its memory."""
    assert keys % STRIDE, f"keys must not be a multiple of {STRIDE}"
    name = f"bench-memory-{secrets.token_hex(3)}"
    source = f"{name}-in"
    cluster.create(source, f"{name}-output", partitions=partitions)
    cluster.fill(source, documents(keys, value_bytes))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
        options = [word for item in settings for word in ("--set", item)]
        process = ApplicationProcess(
            "last_value",
            bootstrap=cluster.bootstrap,
            run=name,
            source=name,
            state=Path(state),
            options=options,
        )
        process.wait_for("running")
        began_s, begin = time.monotonic(), resource_usage([process.pid]).memory
        most = last = begin
        while process.total("committed") < keys:
            process.require_running()
            time.sleep(POLL_INTERVAL_S)
            last = resource_usage([process.pid]).memory
            most = max(most, last)
        took_s = time.monotonic() - began_s
        process.stop()
    cluster.delete(name)
    return Memory(keys, value_bytes, begin=begin, most=most, last=last, per_s=keys / took_s)


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option(
    "--keys", "sizes", multiple=True, default=(100_000, 1_000_000), show_default=True,
    type=click.IntRange(1), help="Number of keys; repeatable.",
)  # fmt: skip
@click.option("--value-bytes", default=100, show_default=True, help="Size of a document.")
@click.option("--partitions", default=1, show_default=True, help="Partitions of each topic.")
@click.option("--set", "settings", multiple=True, help="Setting, as name=value.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
def main(
    bootstrap: str | None,
    sizes: tuple[int, ...],
    value_bytes: int,
    partitions: int,
    settings: tuple[str, ...],
    path: Path | None,
) -> None:
    """Measure resident memory as the keys of an application grow."""
    options = {"value_bytes": value_bytes, "partitions": partitions}
    with open_cluster(bootstrap) as cluster:
        found = [measure_memory(cluster, keys, settings=settings, **options) for keys in sizes]
    Console().print(memory_table(found))
    if path is not None:
        path.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
