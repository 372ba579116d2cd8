"""What being watched costs: the verdict follows from the pairs, or there is none."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.measure.turns import Turn
from benchmarks.watching import Cost


def pairs(cost: float, spread: float, count: int = 100) -> list[tuple[Turn, Turn]]:
    """Neighbours of which one was watched; what else happens falls on both."""
    choose = Random(5)
    found = []
    for _ in range(count):
        alone_s = choose.uniform(0.5, 2.0)
        watched_s = alone_s * (1 + cost + choose.gauss(0, spread))
        # A slower turn has fewer records, too.
        found.append((Turn(500, watched_s / 2, 0, 0), Turn(1_000, alone_s, 0, 0)))
    return found


@pytest.mark.parametrize(
    ("cost", "spread", "verdict"),
    [(0.003, 0.01, True), (0.03, 0.01, False), (0.0, 0.1, None), (0.03, 0.1, None)],
)
def test_the_median_decides_where_it_is_known_well_enough(
    cost: float, spread: float, verdict: bool | None
) -> None:
    found = Cost.of(pairs(cost, spread), lambda turn: turn.all_s)
    assert abs(found.median - cost) < 3 * found.error + 1e-9
    assert found.verdict is verdict


def test_a_few_pairs_that_lie_far_out_change_little() -> None:
    calm = pairs(0.003, 0.01)
    far = [(Turn(1, 9.0, 0, 0), Turn(1_000, 1.0, 0, 0))] * 5
    found = Cost.of([*calm, *far], lambda turn: turn.all_s)
    assert found.verdict is True
