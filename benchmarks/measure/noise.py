"""Noise of the machine: a fixed loop of plain Python, timed before each run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

ITERATIONS = 1_000_000


def loop_ms() -> float:
    """Return the current time of the loop."""
    began = time.perf_counter()
    total = 0
    for number in range(ITERATIONS):
        total += number * number % 7
    assert total > 0
    return (time.perf_counter() - began) * 1000


@dataclass(frozen=True, slots=True)
class Noise:
    """Times of the loop in milliseconds."""

    median_ms: float
    lowest_ms: float
    highest_ms: float

    @staticmethod
    def of(times_ms: Sequence[float]) -> Noise:
        """Summarize the times before the runs."""
        return Noise(statistics.median(times_ms), min(times_ms), max(times_ms))

    @property
    def spread(self) -> float:
        """Difference of the highest and the lowest time, relative to the lowest."""
        return self.highest_ms / self.lowest_ms - 1
