"""How long things took: counts between fixed bounds, which add up over workers."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

COMMIT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LATENCY_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram as it was at one moment.

    Args:
        bounds_s: the upper bounds in seconds, inclusive; what is above the last has no bound.
        counts: how many were seen up to each bound and above the one before, and above the last.
        sum_s: of all that was seen, in seconds.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        """How many were seen.

        >>> Distribution((0.1, 1.0), (2, 1, 4), 9.5).count
        7
        """
        return sum(self.counts)


@dataclass(slots=True)
class Histogram:
    """Counts that one thread adds to.

    >>> histogram = Histogram((0.1, 1.0))
    >>> for seconds in (0.1, 0.5, 3.0):
    ...     histogram.add(seconds)
    >>> histogram.distribution()
    Distribution(bounds_s=(0.1, 1.0), counts=(1, 1, 1), sum_s=3.6)
    """

    bounds_s: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def distribution(self) -> Distribution:
        """What was counted until now."""
        return Distribution(self.bounds_s, tuple(self.counts), self.sum_s)
