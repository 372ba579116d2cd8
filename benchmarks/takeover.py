"""How long partitions that move are nobody's: ``python -m benchmarks.takeover``.

A worker under exactly-once reads a steady stream; another one joins it, takes half of the tasks
with an empty state directory, and leaves again, round after round. The gap of a task is the time
from the last commit of the worker that had it to the first commit of the one that has it then. Of
tasks that stay, the longest time between two commits meanwhile is told, and what was aborted.
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
from benchmarks.measure.feeding import feeding
from benchmarks.measure.processes import Service
from benchmarks.measure.usage import resource_usage

TOPOLOGY = "last_value"
WAIT_S = 60.0
SETTLE_S = 2.0
"""How long commits are looked at behind a move."""
KEYS = 1_000


@dataclass(frozen=True, slots=True)
class Move:
    """A worker that joined or left.

    Args:
        kind: which of them.
        gaps_s: how long each task that moved was nobody's.
        pause_s: the longest time between two commits of a task that stayed; None where none did.
        aborted: transactions that came to nothing meanwhile.
    """

    kind: str
    gaps_s: list[float]
    pause_s: float | None
    aborted: int


def _commits(service: Service, task: str) -> list[float]:
    """When a worker committed a task."""
    return [
        event["at_s"]
        for event in list(service.events)
        if event["event"] == "committed" and task in event["tasks"]
    ]


def _count(what: str, services: Sequence[Service], since_s: float) -> int:
    """How often workers told of something."""
    events = [event for service in services for event in list(service.events)]
    return sum(event["event"] == what and event["at_s"] >= since_s for event in events)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(0.01)


class Scene:
    """One application, and a worker that stays.

    Args:
        options: settings of all workers, as `benchmarks.service` takes them.
    """

    def __init__(self, cluster: Cluster, partitions: int, options: Sequence[str]) -> None:
        self.name = f"bench-takeover-{secrets.token_hex(3)}"
        self.source = f"{self.name}-in"
        self.tasks = {f"0_{partition}" for partition in range(partitions)}
        self._cluster = cluster
        self._options = options
        cluster.create(self.source, f"{self.name}-output", partitions=partitions)

    def start(self, worker: str, state: Path) -> Service:
        """Start a worker."""
        return Service(
            TOPOLOGY,
            bootstrap=self._cluster.bootstrap,
            run=self.name,
            source=self.name,
            state=state,
            options=["--set", f"worker.id={worker}", *self._options],
        )

    def round(self, stays: Service, number: int) -> Iterator[Move]:
        """Have another worker join, and leave again."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
            begun_s = time.monotonic()
            comes = self.start(f"comes-{number}", Path(state))
            half = len(self.tasks) // 2
            _until(lambda: sum(bool(_commits(comes, t)) for t in self.tasks) == half, "it commits")
            time.sleep(SETTLE_S)
            moved = {task for task in self.tasks if _commits(comes, task)}
            both = [stays, comes]
            yield Move(
                "join",
                [_gap_s(stays, comes, task) for task in moved],
                _pause_s(stays, self.tasks - moved, begun_s),
                _count("aborted", both, begun_s),
            )
            begun_s = time.monotonic()
            comes.stop()
            left_s = time.monotonic()
            _until(lambda: all(_commits(stays, t)[-1] > left_s for t in self.tasks), "it goes on")
            time.sleep(SETTLE_S)
            yield Move(
                "leave",
                [_gap_s(comes, stays, task, since_s=begun_s) for task in moved],
                _pause_s(stays, self.tasks - moved, begun_s),
                _count("aborted", both, begun_s),
            )


def _gap_s(before: Service, after: Service, task: str, *, since_s: float = 0.0) -> float:
    """From the last commit of the one to the first commit of the other behind it."""
    first_s = min(at_s for at_s in _commits(after, task) if at_s >= since_s)
    return first_s - max(at_s for at_s in _commits(before, task) if at_s < first_s)


def _pause_s(service: Service, tasks: set[str], since_s: float) -> float | None:
    """The longest time between two commits of a task."""
    pauses = [
        after - before
        for task in tasks
        for before, after in itertools.pairwise(_commits(service, task))
        if after >= since_s
    ]
    return max(pauses, default=None)


def measured(
    cluster: Cluster, *, rounds: int, partitions: int, per_s: int, options: Sequence[str]
) -> list[Move]:
    """Measure joins and leaves in turns."""
    scene = Scene(cluster, partitions, options)
    moves: list[Move] = []
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state,
        feeding(
            cluster.bootstrap,
            scene.source,
            per_s=per_s,
            key_of=lambda number: number % KEYS,
            partitions=partitions,
        ),
    ):
        stays = scene.start("stays", Path(state))
        try:
            _until(lambda: all(_commits(stays, task) for task in scene.tasks), "it commits")
            for number in range(rounds):
                moves += scene.round(stays, number)
        finally:
            stays.stop()
    cluster.delete(scene.name)
    return moves


def _table(moves: Sequence[Move]) -> Table:
    table = Table("", "moves", "gap, median s", "gap, max s", "pause, max s", "aborted")
    for kind in ("join", "leave"):
        own = [move for move in moves if move.kind == kind]
        gaps = [max(move.gaps_s) for move in own]
        pauses = [move.pause_s for move in own if move.pause_s is not None]
        table.add_row(
            kind,
            str(len(own)),
            f"{statistics.median(gaps):.2f}",
            f"{max(gaps):.2f}",
            f"{max(pauses):.2f}" if pauses else "",
            str(sum(move.aborted for move in own)),
        )
    return table


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--rounds", default=10, show_default=True, help="Joins, and as many leaves.")
@click.option("--partitions", default=4, show_default=True)
@click.option("--rate", default=400, show_default=True, help="Records per second.")
@click.option("--set", "extra", multiple=True, help="A setting of the workers, as name=value.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(
    bootstrap: str | None,
    rounds: int,
    partitions: int,
    rate: int,
    extra: tuple[str, ...],
    path: Path | None,
) -> None:
    """Measure how long partitions that move between two workers are nobody's."""
    options = [word for item in extra for word in ("--set", item)]
    with open_cluster(bootstrap) as cluster:
        broker = [] if cluster.broker_pid is None else [cluster.broker_pid]
        cpu_s, begun_s = resource_usage(broker).cpu_s, time.monotonic()
        moves = measured(cluster, rounds=rounds, partitions=partitions, per_s=rate, options=options)
        share = (resource_usage(broker).cpu_s - cpu_s) / (time.monotonic() - begun_s)
    say = Console()
    say.print(_table(moves))
    if broker:
        say.print(f"the broker took {share:.2f} of a core")
    if path is not None:
        path.write_text(json.dumps([asdict(move) for move in moves], indent=2) + "\n")


if __name__ == "__main__":
    main()
