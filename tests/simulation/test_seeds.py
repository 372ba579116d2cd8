"""Many seeds: everything that a worker promises, under everything that can go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from headrace.simulation import CALLS
from headrace.streams.simulation.world.faults import WEIGHTS
from tests.simulation.cores import make_pool
from tests.simulation.seeds import run_block

pytestmark = [pytest.mark.slow, pytest.mark.faults]

IN_MEMORY = 500
"""`test_more_seeds` goes on behind them."""
ON_ROCKSDB = 80
BLOCK = 50

Found = tuple[dict[int, list[str]], Counter[tuple[str, str]]]


class Blocks:
    """The results of all blocks, worked on by two processes while the tests ask for them."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._futures = {
            first: pool.submit(run_block, first, first + BLOCK)
            for first in range(0, IN_MEMORY, BLOCK)
        }

    def result(self, first: int) -> Found:
        return self._futures[first].result()

    def faults(self) -> Counter[tuple[str, str]]:
        return sum((self.result(first)[1] for first in self._futures), Counter())


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    made = make_pool()
    yield made
    made.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def blocks(pool: ProcessPoolExecutor) -> Blocks:
    return Blocks(pool)


def told(failed: dict[int, list[str]]) -> str:
    """Which seeds failed, and how to see one of them again."""
    lines = [f"seed {seed}: {problems[0][:500]}" for seed, problems in failed.items()]
    again = f"python -m tests.simulation {next(iter(failed))}" if failed else ""
    return "\n".join([*lines, f"its history: {again}"])


@pytest.mark.parametrize("first", range(0, IN_MEMORY, BLOCK))
def test_no_seed_loses_doubles_or_reorders(first: int, blocks: Blocks) -> None:
    failed, _ = blocks.result(first)
    assert not failed, told(failed)


def test_every_fault_happens_at_every_call(blocks: Blocks) -> None:
    """What never happened proved nothing."""
    faults = blocks.faults()
    missing = [
        (call, kind)
        for call, kinds in CALLS.items()
        for kind in kinds
        # What is struck in focus alone is looked at in `test_strikes`.
        if not faults[call, kind] and WEIGHTS.get(call, 1.0)
    ]
    assert missing == []
    for kind in ("killed", "left standing", "restarted"):
        assert faults["process", kind] > IN_MEMORY / 10


@pytest.mark.parametrize("first", range(0, ON_ROCKSDB, 20))
def test_no_seed_loses_doubles_or_reorders_on_rocksdb(
    first: int, tmp_path: Path, pool: ProcessPoolExecutor
) -> None:
    failed, _ = pool.submit(run_block, first, first + 20, tmp_path).result()
    assert not failed, told(failed)
