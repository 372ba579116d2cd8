"""Cost of monitoring: the verdict from the pairs."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.measure.intervals import Interval
from benchmarks.monitoring_cost import RelativeCost


def pairs(cost: float, spread: float, count: int = 100) -> list[tuple[Interval, Interval]]:
    """Return pairs of intervals with and without monitoring, with a common random factor."""
    choose = Random(5)
    found = []
    for _ in range(count):
        unmonitored_s = choose.uniform(0.5, 2.0)
        monitored_s = unmonitored_s * (1 + cost + choose.gauss(0, spread))
        # A slower interval also has fewer records.
        found.append((Interval(500, monitored_s / 2, 0, 0), Interval(1_000, unmonitored_s, 0, 0)))
    return found


@pytest.mark.parametrize(
    ("cost", "spread", "verdict"),
    [(0.003, 0.01, True), (0.03, 0.01, False), (0.0, 0.1, None), (0.03, 0.1, None)],
)
def test_the_median_decides_if_its_error_is_small(
    cost: float, spread: float, verdict: bool | None
) -> None:
    found = RelativeCost.of(pairs(cost, spread), lambda interval: interval.process_s)
    assert abs(found.median - cost) < 3 * found.error + 1e-9
    assert found.verdict is verdict


def test_outliers_change_little() -> None:
    calm = pairs(0.003, 0.01)
    far = [(Interval(1, 9.0, 0, 0), Interval(1_000, 1.0, 0, 0))] * 5
    found = RelativeCost.of([*calm, *far], lambda interval: interval.process_s)
    assert found.verdict is True
