"""The simulation finds what it is for: bugs are planted, and a seed shows them.

The same seed passes without the bug.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, found_by
from tests.simulation.seeds import run_seed
from tests.simulation.test_seeds import IN_MEMORY, ON_ROCKSDB

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    on_rocksdb = bug.endswith("on_rocksdb")

    def run(seed: int) -> list[str]:
        return run_seed(seed, tmp_path / f"{seed}" if on_rocksdb else None)[0]

    seed = found_by(bug, run, ON_ROCKSDB if on_rocksdb else IN_MEMORY)
    assert seed is not None
    own = tmp_path / "without" if on_rocksdb else None
    assert run_seed(seed, own)[0] == [], "it fails without the bug too"
