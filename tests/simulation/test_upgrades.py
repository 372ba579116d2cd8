"""Rolling upgrades between random versions of a topology: exact, or refused before a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.cores import make_pool
from tests.simulation.planted import BUGS_OF_UPGRADES, found_by
from tests.simulation.test_seeds import Found, told
from tests.simulation.upgrades import run_block, run_seed

pytestmark = [pytest.mark.slow, pytest.mark.faults]

SEEDS = 240
BLOCK = 20


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    made = make_pool()
    yield made
    made.shutdown(cancel_futures=True)


def test_no_upgrade_doubles_or_loses_records(pool: ProcessPoolExecutor) -> None:
    firsts = range(0, SEEDS, BLOCK)
    found: list[Found] = [
        future.result()
        for future in [pool.submit(run_block, first, first + BLOCK) for first in firsts]
    ]
    failed = {seed: words for block, _ in found for seed, words in block.items()}
    assert not failed, told(failed)
    counts: Counter[tuple[str, str]] = sum((c for _, c in found), Counter())
    # What never happened proved nothing.
    assert counts["runs", "refused"] > SEEDS / 80
    assert counts["runs", "exact"] > SEEDS / 4
    others = {name: n for (kind, name), n in counts.items() if kind == "refused"}
    assert sum(others.values()) - others["version"] < SEEDS / 20, others


@pytest.mark.parametrize("bug", BUGS_OF_UPGRADES)
def test_a_planted_bug_of_upgrades_is_found(bug: str) -> None:
    found = found_by(bug, lambda seed: run_seed(seed)[0], SEEDS)
    assert found is not None
    assert run_seed(found)[0] == [], "it fails without the bug too"
