"""Interruption of tasks by a rebalance: ``python -m benchmarks.rebalance``.

A worker with exactly-once reads a steady stream. In each round another worker joins with an empty
state directory, takes over half of the tasks, and leaves again. The gap of such a task is the time
from the last commit of its former worker to the first commit of its new one. For tasks that are not
reassigned, the longest time between two commits is printed, and the number of aborted transactions.
"""

from __future__ import annotations

import itertools
import json
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.load import steady_load
from benchmarks.measure.processes import ApplicationProcess
from benchmarks.measure.usage import resource_usage

TOPOLOGY = "last_value"
WAIT_S = 60.0
OBSERVATION_S = 2.0
"""Time after a rebalance in which pauses and aborts count."""
KEYS = 1_000


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Interruption of tasks after a worker has joined or left.

    Args:
        kind: `join` or `leave`.
        gaps_s: time without a commit of each task that was reassigned.
        pause_s: longest time between two commits of a task that was not reassigned; None if there
            is no such task.
        aborted: number of aborted transactions.
    """

    kind: str
    gaps_s: list[float]
    pause_s: float | None
    aborted: int


def _commits(worker: ApplicationProcess, task: str) -> list[float]:
    """Return the times of a worker's commits of a task."""
    return [
        event["at_s"]
        for event in list(worker.events)
        if event["event"] == "committed" and task in event["tasks"]
    ]


def _count(name: str, workers: Sequence[ApplicationProcess], since_s: float) -> int:
    """Return the number of events of this name since a time."""
    events = [event for worker in workers for event in list(worker.events)]
    return sum(event["event"] == name and event["at_s"] >= since_s for event in events)


def _until(condition: Callable[[], bool], expected: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {expected} within {WAIT_S:.0f} s")
        time.sleep(0.01)


class RebalancedApplication:
    """Application whose workers join and leave.

    Args:
        cluster: the cluster.
        partitions: number of partitions of each topic.
        options: options of `benchmarks.service` for all workers.
    """

    def __init__(self, cluster: Cluster, partitions: int, options: Sequence[str]) -> None:
        self.name = f"bench-rebalance-{secrets.token_hex(3)}"
        self.source = f"{self.name}-in"
        self.tasks = {f"0_{partition}" for partition in range(partitions)}
        self._cluster = cluster
        self._options = options
        cluster.create(self.source, f"{self.name}-output", partitions=partitions)

    def start(self, worker: str, state: Path) -> ApplicationProcess:
        """Start a worker."""
        return ApplicationProcess(
            TOPOLOGY,
            bootstrap=self._cluster.bootstrap,
            run=self.name,
            source=self.name,
            state=state,
            options=["--set", f"worker.id={worker}", *self._options],
        )

    def round(self, permanent: ApplicationProcess, number: int) -> Iterator[Rebalance]:
        """Measure a join of another worker, and its leave."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
            begun_s = time.monotonic()
            joining = self.start(f"joining-{number}", Path(state))
            half = len(self.tasks) // 2
            _until(lambda: sum(bool(_commits(joining, t)) for t in self.tasks) == half, "commit")
            time.sleep(OBSERVATION_S)
            reassigned = {task for task in self.tasks if _commits(joining, task)}
            both = [permanent, joining]
            yield Rebalance(
                "join",
                [_gap_s(permanent, joining, task) for task in reassigned],
                _pause_s(permanent, self.tasks - reassigned, begun_s),
                _count("aborted", both, begun_s),
            )
            begun_s = time.monotonic()
            joining.stop()
            left_s = time.monotonic()
            _until(lambda: all(_commits(permanent, t)[-1] > left_s for t in self.tasks), "commit")
            time.sleep(OBSERVATION_S)
            yield Rebalance(
                "leave",
                [_gap_s(joining, permanent, task, since_s=begun_s) for task in reassigned],
                _pause_s(permanent, self.tasks - reassigned, begun_s),
                _count("aborted", both, begun_s),
            )


def _gap_s(
    before: ApplicationProcess, after: ApplicationProcess, task: str, *, since_s: float = 0.0
) -> float:
    """Return the time from a worker's last commit to the next worker's first one after it."""
    first_s = min(at_s for at_s in _commits(after, task) if at_s >= since_s)
    return first_s - max(at_s for at_s in _commits(before, task) if at_s < first_s)


def _pause_s(worker: ApplicationProcess, tasks: set[str], since_s: float) -> float | None:
    """Return the longest time between two commits of a task, or None if there are no tasks."""
    pauses = [
        after - before
        for task in tasks
        for before, after in itertools.pairwise(_commits(worker, task))
        if after >= since_s
    ]
    return max(pauses, default=None)


def measure_rebalances(
    cluster: Cluster, *, rounds: int, partitions: int, per_s: int, options: Sequence[str]
) -> list[Rebalance]:
    """Measure joins and leaves, one after the other."""
    application = RebalancedApplication(cluster, partitions, options)
    rebalances: list[Rebalance] = []
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state,
        steady_load(
            cluster.bootstrap,
            application.source,
            per_s=per_s,
            key_of=lambda number: number % KEYS,
            partitions=partitions,
        ),
    ):
        permanent = application.start("permanent", Path(state))
        try:
            _until(lambda: all(_commits(permanent, task) for task in application.tasks), "commit")
            for number in range(rounds):
                rebalances += application.round(permanent, number)
        finally:
            permanent.stop()
    cluster.delete(application.name)
    return rebalances


def _table(rebalances: Sequence[Rebalance]) -> Table:
    table = Table("", "rebalances", "gap, median s", "gap, max s", "pause, max s", "aborted")
    for kind in ("join", "leave"):
        own = [one for one in rebalances if one.kind == kind]
        gaps = [max(one.gaps_s) for one in own]
        pauses = [one.pause_s for one in own if one.pause_s is not None]
        table.add_row(
            kind,
            str(len(own)),
            f"{statistics.median(gaps):.2f}",
            f"{max(gaps):.2f}",
            f"{max(pauses):.2f}" if pauses else "",
            str(sum(one.aborted for one in own)),
        )
    return table


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--rounds", default=10, show_default=True, help="Number of joins and of leaves.")
@click.option("--partitions", default=4, show_default=True, help="Partitions of each topic.")
@click.option("--rate", default=400, show_default=True, help="Records per second.")
@click.option("--set", "extra", multiple=True, help="Setting of the workers, as name=value.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
def main(
    bootstrap: str | None,
    rounds: int,
    partitions: int,
    rate: int,
    extra: tuple[str, ...],
    path: Path | None,
) -> None:
    """Measure the interruption of tasks when workers join and leave."""
    options = [word for item in extra for word in ("--set", item)]
    with open_cluster(bootstrap) as cluster:
        broker = [] if cluster.broker_pid is None else [cluster.broker_pid]
        cpu_s, begun_s = resource_usage(broker).cpu_s, time.monotonic()
        rebalances = measure_rebalances(
            cluster, rounds=rounds, partitions=partitions, per_s=rate, options=options
        )
        share = (resource_usage(broker).cpu_s - cpu_s) / (time.monotonic() - begun_s)
    console = Console()
    console.print(_table(rebalances))
    if broker:
        console.print(f"CPU of the broker: {share:.2f} cores")
    if path is not None:
        path.write_text(json.dumps([asdict(one) for one in rebalances], indent=2) + "\n")


if __name__ == "__main__":
    main()
