"""The benchmark: ``make bench``, or ``python -m benchmarks.run``.

Each shape of a job is one input, on which Headrace and its peers run in turns: one round after
another, because the speed of a machine changes from minute to minute. Ratios are taken within a
round, and printed for three rounds or more. The output of each run is compared with the expected
one; if one differs, the exit code is 1.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import psutil
from rich.console import Console

from benchmarks.jobs.catalogue import JOBS
from benchmarks.latency import headrace_runner, kafka_streams, measure_latency
from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.noise import Noise, loop_ms
from benchmarks.peers.commands import PEERS, PYTHON_PEERS, Command, commands, headrace
from benchmarks.peers.peer import NEXT_STREAMS_VERSION
from benchmarks.peers.quix import VERSION as QUIX_VERSION
from benchmarks.plan import (
    FULL,
    LONG_RECORDS,
    QUICK,
    RANDOM,
    BenchmarkSize,
    JobRun,
    Selection,
    job_runs,
    warm_up,
)
from benchmarks.plots import draw
from benchmarks.report import WIDTH, tables
from benchmarks.restart import measure_restarts
from benchmarks.results import MIN_ROUNDS, JobResult, Latency, Report, Restart
from benchmarks.throughput import Log, measure
from headrace.streams.devbroker.jars import KAFKA_VERSION

RATE_PER_S = 1000
PLOTS = Path("docs/plots")
SHAPES = (RANDOM, *dict.fromkeys(shape.name for job in JOBS.values() for shape in job.shapes))


class Throughput:
    """Runs jobs until the time is over.

    Args:
        cluster: the cluster.
        available: commands of peers.
        wanted: names of peers.
        partitions: partitions of each topic.
        log: called with each line of progress.
    """

    def __init__(
        self,
        cluster: Cluster,
        available: Mapping[str, Command],
        wanted: Collection[str],
        partitions: int,
        log: Log,
    ) -> None:
        self._peers = {name: peer for name, peer in available.items() if name in wanted}
        self._cluster = cluster
        self._partitions = partitions
        self._log = log
        self.skipped: list[str] = []

    def measure(self, chosen: Sequence[JobRun], minutes: float) -> Iterator[JobResult]:
        """Yield the result of each run of a job that starts in time."""
        deadline_s = time.monotonic() + minutes * 60
        self._run(warm_up(), {"headrace": headrace})
        for job_run in chosen:
            if time.monotonic() < deadline_s:
                yield self._run(job_run, self._peers)
            else:
                self.skipped.append(f"{job_run.title}, {job_run.shape.name}")

    def _run(self, job_run: JobRun, peers: Mapping[str, Command]) -> JobResult:
        return measure(self._cluster, job_run, peers, partitions=self._partitions, log=self._log)


def _versions(next_version: str) -> dict[str, str]:
    found = {"Kafka and Kafka Streams": KAFKA_VERSION, "Kafka Streams next": next_version}
    found |= {"Quix Streams": QUIX_VERSION, "Python": platform.python_version()}
    for name in ("headrace", "confluent-kafka", "rocksdict"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.machine()}, {os.cpu_count()} cores shared with the broker, {memory:.0f} GiB"


def _latency_and_restarts(
    cluster: Cluster, size: BenchmarkSize, partitions: int, log: Log
) -> tuple[list[Latency], list[Restart]]:
    log("[bold]latency[/]")
    runners = [headrace_runner(), *(kafka_streams(log) if size.is_full else [])]
    latency = measure_latency(cluster, RATE_PER_S, size.latency_s, runners)
    restarts = []
    for keys in size.restart_keys:
        log(f"[bold]restart[/] with {keys:,} keys")
        restarts += measure_restarts(cluster, keys, partitions)
    return latency, restarts


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option(
    "--job", "names", multiple=True, type=click.Choice(list(JOBS)), help="Job; repeatable."
)
@click.option(
    "--shape", "shapes", multiple=True, type=click.Choice(SHAPES), help="Shape; repeatable."
)
@click.option("--seed", type=int, help="Seed of random shapes and of all data.")
@click.option("--peer", "wanted", multiple=True, type=click.Choice(PEERS), help="Peer; repeatable.")
@click.option("--quick", is_flag=True, help="Fewer jobs, smaller, one round: under five minutes.")
@click.option("--records", type=int, help="Input records of each shape; keys in proportion.")
@click.option("--rounds", type=int, help=f"Rounds; ratios require {MIN_ROUNDS}.")
@click.option("--minutes", type=float, help="No shape starts after this time; 48 by default.")
@click.option("--partitions", default=2, show_default=True, help="Partitions of each topic.")
@click.option(
    "--next-version",
    default=NEXT_STREAMS_VERSION,
    show_default=True,
    help="Version of the peer kafka-streams next.",
)
@click.option(
    "--checkout",
    type=click.Path(exists=True, path_type=Path),
    help="Another checkout of Headrace with its .venv, as a peer.",
)
@click.option("--long", "is_long", is_flag=True, help="Only long runs, of one and two workers.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
@click.option("--plots", is_flag=True, help=f"Draw {PLOTS}/*.svg.")
def main(
    bootstrap: str | None,
    names: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int | None,
    wanted: tuple[str, ...],
    quick: bool,
    records: int | None,
    rounds: int | None,
    minutes: float | None,
    partitions: int,
    next_version: str,
    checkout: Path | None,
    is_long: bool,
    path: Path | None,
    plots: bool,
) -> None:
    """Compare Headrace with its peers on the same input.

    With --job, --shape, --checkout or --long, only throughput is measured.
    """
    console = Console(width=max(Console().width, WIDTH))
    size = QUICK if quick else FULL
    if is_long and (shapes or quick or seed is not None):
        raise click.UsageError("--long has its own input. Remove --shape, --seed and --quick.")
    if is_long and not LONG_RECORDS.keys() >= set(names):
        raise click.UsageError(f"--long requires one of the jobs {', '.join(LONG_RECORDS)}.")
    began = time.monotonic()
    if RANDOM in shapes and seed is None:
        seed = secrets.randbelow(1_000_000)
        console.print(f"Random shapes: repeat with --seed {seed}")
    chosen = list(job_runs(size, Selection(names, shapes, seed, records, rounds, is_long)))
    if not chosen:
        raise click.UsageError("The jobs have no such shape. Choose another --shape or --job.")
    noise_ms = [loop_ms()]
    with open_cluster(bootstrap) as cluster:
        wanted = wanted or (PEERS if checkout is None else PYTHON_PEERS)
        available = commands(console.print, wanted, next_version, checkout)
        throughput = Throughput(cluster, available, wanted, partitions, console.print)
        jobs = list(throughput.measure(chosen, minutes or size.minutes))
        latency: list[Latency] = []
        restarts: list[Restart] = []
        if not (names or shapes or is_long or checkout):
            latency, restarts = _latency_and_restarts(cluster, size, partitions, console.print)
    runs = [run for job in jobs for series in job.series for run in series.runs]
    noise_ms += [run.noise_ms for run in runs if run is not None]
    report = Report(
        machine=_machine(),
        versions=_versions(next_version),
        quick=quick,
        minutes=(time.monotonic() - began) / 60,
        noise=Noise.of(noise_ms),
        jobs=jobs,
        latency=latency,
        restarts=restarts,
        min_rounds=MIN_ROUNDS,
        skipped=throughput.skipped,
    )
    _publish(report, console, path, plots=plots)
    if any(run is None or run.wrong for run in runs):
        raise SystemExit(1)


def _publish(report: Report, console: Console, path: Path | None, *, plots: bool) -> None:
    for table in tables(report):
        console.print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(report), indent=1) + "\n")
    if plots:
        try:
            draw(report, PLOTS)
        except ImportError:
            console.print("Plots require matplotlib: pip install -e '.\\[bench]'")


if __name__ == "__main__":
    main()
