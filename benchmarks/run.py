"""The benchmark: ``make bench``, or ``python -m benchmarks.run``.

Each job runs on one input with Headrace, with Kafka Streams, with Quix and as a loop by hand, in
turns: one round after another, as the machine's speed changes from one minute to the next. Ratios
are taken within a round. Every run's output is compared with a recount; a wrong one ends the
benchmark with exit code 1.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import psutil
from rich.console import Console

from benchmarks.jobs.catalogue import JOBS
from benchmarks.latency import kafka_streams, own
from benchmarks.latency import measured as measured_latency
from benchmarks.measure.cluster import Cluster, cluster
from benchmarks.measure.noise import Noise, loop_ms
from benchmarks.peers.commands import commands, headrace
from benchmarks.peers.quix import VERSION as QUIX_VERSION
from benchmarks.plan import FULL, QUICK, Amount, Task, tasks, warming
from benchmarks.plots import draw
from benchmarks.report import WIDTH, tables
from benchmarks.restart import measured as measured_restarts
from benchmarks.results import JobResult, Latency, Report, Restart
from benchmarks.throughput import Say, measure
from headrace.streams.devbroker.jars import KAFKA_VERSION

RATE_PER_S = 1000
THROUGHPUT_SHARE = 0.75
"""Of the time; the rest is for latency and restarts."""
PEERS = ("headrace", "kafka-streams", "by hand", "quix")
PLOTS = Path("docs/plots")


def _throughput(
    place: Cluster,
    chosen: list[Task],
    wanted: Collection[str],
    minutes: float,
    partitions: int,
    say: Say,
) -> Iterator[JobResult]:
    peers = {name: peer for name, peer in commands(say).items() if name in wanted}
    began, allowed_s = time.monotonic(), minutes * 60 * THROUGHPUT_SHARE
    measure(place, warming(), {"headrace": headrace}, partitions=partitions, until_s=began, say=say)
    weights = [task.weight_s for task in chosen]
    for number, task in enumerate(chosen):
        share = sum(weights[: number + 1]) / sum(weights)
        until_s = began + allowed_s * share
        yield measure(place, task, peers, partitions=partitions, until_s=until_s, say=say)


def _versions() -> dict[str, str]:
    found = {"Kafka and Kafka Streams": KAFKA_VERSION, "Quix Streams": QUIX_VERSION}
    found["Python"] = platform.python_version()
    for name in ("headrace", "confluent-kafka", "rocksdict"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.machine()}, {os.cpu_count()} cores shared with the broker, {memory:.0f} GiB"


def _others(
    place: Cluster, amount: Amount, partitions: int, say: Say
) -> tuple[list[Latency], list[Restart]]:
    say("[bold]latency[/]")
    runners = [own(), *(kafka_streams(say) if amount.long else [])]
    latency = measured_latency(place, RATE_PER_S, amount.latency_s, runners)
    restarts = []
    for keys in amount.restart_keys:
        say(f"[bold]restart[/] with {keys:,} keys")
        restarts += measured_restarts(place, keys, partitions)
    return latency, restarts


@click.command()
@click.option("--bootstrap", help="A cluster to run on; by default a broker of one's own.")
@click.option("--job", "names", multiple=True, type=click.Choice(list(JOBS)), help="Only these.")
@click.option("--peer", "wanted", multiple=True, type=click.Choice(PEERS), help="Only these.")
@click.option("--quick", is_flag=True, help="Fewer jobs, smaller, once: under five minutes.")
@click.option("--records", type=int, help="Input records of each job, instead of the defaults.")
@click.option("--rounds", type=int, help="How often everything runs.")
@click.option("--partitions", default=2, show_default=True, help="Of every topic.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
@click.option("--plots", is_flag=True, help=f"Draw {PLOTS}/*.svg.")
def main(
    bootstrap: str | None,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    quick: bool,
    records: int | None,
    rounds: int | None,
    partitions: int,
    path: Path | None,
    plots: bool,
) -> None:
    """Compare Headrace with Kafka Streams, Quix and loops by hand over the same input.

    With --job, only throughput is measured.
    """
    say = Console(width=max(Console().width, WIDTH))
    amount = QUICK if quick else FULL
    began = time.monotonic()
    chosen = list(tasks(amount, names, records, rounds))
    noise_ms = [loop_ms()]
    with cluster(bootstrap) as place:
        jobs = list(
            _throughput(place, chosen, wanted or PEERS, amount.minutes, partitions, say.print)
        )
        latency: list[Latency] = []
        restarts: list[Restart] = []
        if not names:
            latency, restarts = _others(place, amount, partitions, say.print)
    runs = [r for job in jobs for series in job.series for r in series.runs if r is not None]
    noise_ms += [run.noise_ms for run in runs]
    report = Report(
        _machine(),
        _versions(),
        quick,
        (time.monotonic() - began) / 60,
        Noise.of(noise_ms),
        jobs,
        latency,
        restarts,
    )
    for table in tables(report):
        say.print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(report), indent=1) + "\n")
    if plots:
        try:
            draw(report, PLOTS)
        except ImportError:
            say.print("No plots without matplotlib: pip install -e '.\\[bench]'")
    failed = any(None in series.runs for job in jobs for series in job.series)
    if failed or any(run.wrong for run in runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
