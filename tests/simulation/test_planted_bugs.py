"""The simulation finds what it is for: bugs are planted, and a seed of the tests' range shows them.

The same seeds pass without the bug (`test_seeds`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, planted
from tests.simulation.seeds import run_seed
from tests.simulation.test_seeds import IN_MEMORY, ON_ROCKSDB

WINDOW = 120
FIRST: dict[str, int] = {
    "metadata_fetched_at_commit_time": 400,
    "another_membership_not_noticed": 400,
    "lost_partitions_dropped_without_an_abort": 30,
    "offsets_read_while_undecided": 150,
    "offsets_from_the_consumers_position": 45,
    "bulk_restore_without_flush_on_rocksdb": 50,
}
"""Where to begin to look for bugs that few seeds meet, so that the test is short."""


def found_at(bug: str, seeds: range, state_dir: Path | None) -> int | None:
    """The first of the seeds that fails with the bug."""
    with planted(bug):
        for seed in seeds:
            own = None if state_dir is None else state_dir / str(seed)
            if run_seed(seed, own)[0]:
                return seed
    return None


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    first = FIRST.get(bug, 0)
    on_rocksdb = bug.endswith("on_rocksdb")
    seeds = range(first, min(first + WINDOW, ON_ROCKSDB if on_rocksdb else IN_MEMORY))
    seed = found_at(bug, seeds, tmp_path if on_rocksdb else None)
    assert seed is not None
    own = tmp_path / "without" if on_rocksdb else None
    assert run_seed(seed, own)[0] == [], "it fails without the bug too"
