"""How quiet the machine is: a fixed piece of pure Python, timed before each run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

TURNS = 1_000_000


def loop_ms() -> float:
    """The time that the loop takes now; it does the same each time."""
    began = time.perf_counter()
    total = 0
    for number in range(TURNS):
        total += number * number % 7
    assert total > 0
    return (time.perf_counter() - began) * 1000


@dataclass(frozen=True, slots=True)
class Noise:
    """The loop's times in milliseconds."""

    median_ms: float
    lowest_ms: float
    highest_ms: float

    @staticmethod
    def of(times_ms: Sequence[float]) -> Noise:
        """What was seen before the runs."""
        return Noise(statistics.median(times_ms), min(times_ms), max(times_ms))

    @property
    def spread(self) -> float:
        """How much slower than at best the loop was at worst: 0.1 is ten percent."""
        return self.highest_ms / self.lowest_ms - 1
