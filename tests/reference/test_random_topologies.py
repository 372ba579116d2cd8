"""Whatever the topology: it does what a slow interpreter does with the same records.

``python -m tests.reference --seeds 20000`` compares more of them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.reference.__main__ import WAYS
from tests.reference.checking import Way, check, program_of
from tests.reference.programs import FEWER_OPS

SEEDS = 1000


@pytest.mark.parametrize("part", range(8))
def test_random_topologies_equal_the_interpreter(part: int) -> None:
    """Caches on and off, aborts and restarts between records, one partition and three."""
    outcomes: Counter[str] = Counter()
    for seed in range(part, SEEDS, 8):
        way = WAYS[seed % len(WAYS)]
        try:
            outcomes[check(program_of(seed, way), way)] += 1
        except Exception as error:
            raise AssertionError(
                f"seed {seed} differs; python -m tests.reference --first {seed} --seeds 1 shows it"
            ) from error
    assert outcomes["compared"] > SEEDS // 8 * 0.75, outcomes
    assert outcomes["refused"] > 0, outcomes


@pytest.mark.parametrize("seed", range(20))
def test_random_topologies_on_disk_equal_the_interpreter(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("state")
    way = Way(partitions=1 + seed % 3, interrupted=True, on_disk=str(path))
    assert check(program_of(10_000 + seed, way), way) != "unknown"


_AROUND = ("map", "select_key", "filter", "merge", "repartition", "count", "to_table")


def test_fewer_records_go_on_as_the_interpreter_says() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(80):
        way = WAYS[seed % len(WAYS)]
        program = program_of(seed, way, (*FEWER_OPS, *_AROUND))
        outcomes[check(program, way)] += 1
    assert outcomes["compared"] > 60, outcomes
