"""Partitions that are far apart in event time, under everything that can go wrong."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.cores import make_pool
from tests.simulation.planted import BUGS_OF_SKEW, found_by
from tests.simulation.skew_seeds import run_block, run_seed
from tests.simulation.test_seeds import told

SEEDS = 120
BLOCK = 15


@pytest.mark.slow
def test_no_record_of_a_few_seeds_is_late() -> None:
    failed, _ = run_block(0, 8)
    assert not failed, told(failed)


@pytest.mark.slow
@pytest.mark.faults
def test_no_record_is_late() -> None:
    pool: ProcessPoolExecutor = make_pool()
    with pool:
        blocks = [(first, first + BLOCK) for first in range(0, SEEDS, BLOCK)]
        found = [pool.submit(run_block, *block) for block in blocks]
        failed = {seed: p for one in found for seed, p in one.result()[0].items()}
    assert not failed, told(failed)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("bug", BUGS_OF_SKEW)
def test_a_planted_bug_is_found(bug: str) -> None:
    seed = found_by(bug, lambda seed: run_seed(seed)[0], SEEDS)
    assert seed is not None
    assert run_seed(seed)[0] == [], "it fails without the bug too"
