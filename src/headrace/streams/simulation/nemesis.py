"""Nemesis: kills, suspends and restarts workers, deletes their state and compacts changelogs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.simulation.world.cluster import Cluster
from headrace.streams.simulation.world.disk import Host
from headrace.streams.simulation.world.faults import Faults
from headrace.streams.simulation.world.kernel import SECOND
from headrace.streams.simulation.world.process import Process


class Slot(Protocol):
    """Worker across its restarts."""

    @property
    def process(self) -> Process | None:
        """The current process, or None."""

    def restart(self) -> None:
        """Stop cleanly, and start again some time later."""

    def start_twin(self, stands_us: int) -> bool:
        """Suspend the worker, and start a duplicate instance with its identity."""


def plan_trouble(
    faults: Faults,
    cluster: Cluster,
    slots: Sequence[Slot],
    hosts: Sequence[Host],
    changelogs: Sequence[str],
    seconds: float,
    seed: int,
) -> None:
    # A separate random generator, so that newer kinds of faults do not change existing seeds.
    chances = random.Random(f"nemesis/{seed}")  # noqa: S311 - reproducible on purpose
    _Nemesis(faults, cluster, slots, hosts, changelogs, chances).plan(seconds)


@dataclass(frozen=True, slots=True)
class _Nemesis:
    """Faults of whole workers, disks and clocks, with a method for each kind."""

    faults: Faults
    cluster: Cluster
    slots: Sequence[Slot]
    hosts: Sequence[Host]
    changelogs: Sequence[str]
    chances: random.Random

    def plan(self, seconds: float) -> None:
        plan, dice = self.faults.plan, self.faults.random
        troubles = [
            (plan.crashes, self.kill, dice),
            (plan.stalls, self.stand, dice),
            (plan.restarts, self.restart, dice),
            (plan.compaction if self.changelogs else None, self.compact, dice),
            (2.0 if plan.lost_state else None, self.remember, dice),
            (plan.full_disks, self.fill, self.chances),
            (plan.clock_jumps, self.jump, self.chances),
            (plan.twins, self.twin, self.chances),
        ]
        for average, what, drawn_by in troubles:
            for _ in range(0 if average is None else _draw(drawn_by, average)):
                moment = drawn_by.uniform(0.02, 1) * seconds * SECOND
                self.cluster.kernel.after(int(moment), what)

    def kill(self) -> None:
        process = self._living()
        if process is not None:
            self.faults.counts["process", "killed"] += 1
            process.die()

    def stand(self) -> None:
        process = self._living()
        if process is not None:
            self.faults.counts["process", "left standing"] += 1
            process.stand(self.faults.stall_us())

    def restart(self) -> None:
        self.faults.counts["process", "restarted"] += 1
        self.faults.random.choice(self.slots).restart()

    def compact(self) -> None:
        topic = self.faults.random.choice(self.changelogs)
        tps = self.cluster.places(topic)
        gone = sum(self.cluster.log(tp).compact() for tp in tps)
        self.faults.counts["cluster", "compacted"] += 1
        self.cluster.kernel.note("cluster", f"compacts {topic}: {gone} records")

    def remember(self) -> None:
        for host in self.hosts:
            host.remember()

    def fill(self) -> None:
        self.faults.counts["disk", "full"] += 1
        host, seconds = self.chances.choice(self.hosts), self.chances.uniform(0.05, 4)
        self.cluster.kernel.note("nemesis", f"a disk is full for {seconds:.3f} s")
        host.full_until_us = self.cluster.kernel.now_us + int(seconds * SECOND)

    def jump(self) -> None:
        self.faults.counts["clock", "jumped"] += 1
        hours = self.chances.choice((-48, -1, 0.01, 1, 48))
        self.cluster.kernel.note("nemesis", f"the clock jumps by {hours} h")
        self.cluster.kernel.wall_ahead_ms += int(hours * 3_600_000)

    def twin(self) -> None:
        if self.chances.choice(self.slots).start_twin(int(self.chances.uniform(0.5, 12) * SECOND)):
            self.faults.counts["process", "twins"] += 1
            self.cluster.kernel.note(
                "nemesis", "a worker is started while another with its identity stands"
            )

    def _living(self) -> Process | None:
        found = [s.process for s in self.slots if s.process is not None and s.process.alive]
        return self.faults.random.choice(found) if found else None


def _draw(dice: random.Random, average: float) -> int:
    most = max(5, int(2 * average))
    return min(most, int(dice.expovariate(1 / average) + 0.5)) if average > 0 else 0
