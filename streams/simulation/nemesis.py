"""Who kills, stops and starts workers, loses their disks and compacts their changelogs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from streams.simulation.cluster import Cluster
from streams.simulation.disk import Host
from streams.simulation.faults import Faults
from streams.simulation.kernel import SECOND
from streams.simulation.process import Process


class Slot(Protocol):
    """A worker across its lives."""

    @property
    def process(self) -> Process | None:
        """The life that goes on now."""

    def restart(self) -> None:
        """Stop cleanly, and start again some time later."""

    def start_twin(self, stands_us: int) -> bool:
        """Leave the worker standing, and start another with its identity meanwhile."""


def plan_trouble(
    faults: Faults,
    cluster: Cluster,
    slots: Sequence[Slot],
    hosts: Sequence[Host],
    changelogs: Sequence[str],
    seconds: float,
    seed: int,
) -> None:
    """Schedule what happens to whole workers, at random moments."""
    plan, dice, kernel = faults.plan, faults.random, cluster.kernel
    # Of its own, so that what came later to the simulation changes no seed.
    chances = random.Random(f"nemesis/{seed}")  # noqa: S311 - reproducible on purpose

    def later(average: float, what: Callable[[], None]) -> None:
        for _ in range(_draw(dice, average)):
            kernel.after(int(dice.uniform(0.02, 1) * seconds * SECOND), what)

    def living() -> Process | None:
        found = [s.process for s in slots if s.process is not None and s.process.alive]
        return dice.choice(found) if found else None

    def kill() -> None:
        process = living()
        if process is not None:
            faults.counts["process", "killed"] += 1
            process.die()

    def stand() -> None:
        process = living()
        if process is not None:
            faults.counts["process", "left standing"] += 1
            process.stand(faults.stall_us())

    def restart() -> None:
        faults.counts["process", "restarted"] += 1
        dice.choice(slots).restart()

    def compact() -> None:
        topic = dice.choice(changelogs)
        gone = sum(cluster.log(place).compact() for place in cluster.places(topic))
        faults.counts["cluster", "compacted"] += 1
        kernel.note("cluster", f"compacts {topic}: {gone} records")

    def remember() -> None:
        for host in hosts:
            host.remember()

    def fill() -> None:
        faults.counts["disk", "full"] += 1
        host, seconds = chances.choice(hosts), chances.uniform(0.05, 4)
        kernel.note("nemesis", f"a disk is full for {seconds:.3f} s")
        host.full_until_us = kernel.now_us + int(seconds * SECOND)

    def jump() -> None:
        faults.counts["clock", "jumped"] += 1
        hours = chances.choice((-48, -1, 0.01, 1, 48))
        kernel.note("nemesis", f"the clock jumps by {hours} h")
        kernel.wall_ahead_ms += int(hours * 3_600_000)

    def twin() -> None:
        if chances.choice(slots).start_twin(int(chances.uniform(0.5, 12) * SECOND)):
            faults.counts["process", "twins"] += 1
            kernel.note("nemesis", "a worker is started while another with its identity stands")

    later(plan.crashes, kill)
    later(plan.stalls, stand)
    later(plan.restarts, restart)
    if changelogs:
        later(plan.compaction, compact)
    if plan.lost_state:
        later(2.0, remember)
    for average, what in (
        (plan.full_disks, fill),
        (plan.clock_jumps, jump),
        (plan.twins, twin),
    ):
        for _ in range(_draw(chances, average)):
            kernel.after(int(chances.uniform(0.02, 1) * seconds * SECOND), what)


def _draw(dice: random.Random, average: float) -> int:
    """How many times something happens, none to five."""
    return min(5, int(dice.expovariate(1 / average) + 0.5)) if average > 0 else 0
