"""What one run cost: a mark at each commit, and the rates between the first mark and the last.

The first commit is left out on purpose: before it lie the group's rebalance, the first fetches and
the warming up of caches, which take the same time however long the run is.
"""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """Between the first commit and the last."""

    records: int
    wall_s: float
    cpu_s: float
    commits: int


@dataclass(slots=True)
class Meter:
    """Takes a mark at each commit of the process that it runs in."""

    processed: int = 0
    marks: list[tuple[int, float, float]] = field(default_factory=list)

    def start(self) -> None:
        """Measure from now on, not from the first commit; the first fetch is in it then."""
        if not self.marks:
            self.commit(0)

    def commit(self, records: int) -> None:
        """Note that `records` more are processed and committed."""
        self.processed += records
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = usage.ru_utime + usage.ru_stime
        self.marks.append((self.processed, time.monotonic(), cpu_s))

    def idle_s(self) -> float:
        """How long ago the last commit was; 0 before the first one."""
        return time.monotonic() - self.marks[-1][1] if self.marks else 0.0

    def cost(self) -> Cost:
        """The cost between the first commit and the last that moved anything."""
        moved = [
            mark
            for before, mark in zip([(-1, 0.0, 0.0), *self.marks], self.marks, strict=False)
            if mark[0] > before[0]
        ]
        (first, start_s, start_cpu), (last, end_s, end_cpu) = moved[0], moved[-1]
        return Cost(last - first, end_s - start_s, end_cpu - start_cpu, len(moved) - 1)

    def report(self) -> dict[str, object]:
        """What the process that started this one reads."""
        return {**asdict(self.cost()), "processed": self.processed}
