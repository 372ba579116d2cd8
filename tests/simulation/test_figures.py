"""What workers count is what the cluster saw, whatever fails, and whoever is killed."""

from __future__ import annotations

import pytest

from tests.simulation.figures import figures_that_differ
from tests.simulation.seeds import simulation_of

pytestmark = pytest.mark.slow

EXACTLY_ONCE = [seed for seed in range(50) if seed % 5 != 4]


@pytest.mark.parametrize("seed", EXACTLY_ONCE)
def test_figures_are_what_the_cluster_saw(seed: int) -> None:
    result = simulation_of(seed).run(seed)
    assert figures_that_differ(result) == []
    counted = [life.worker for life in result._outcome.lives if life.worker is not None]
    assert sum(worker._parts.counters.records_committed for worker in counted) > 0
