"""A few seeds of each family, for all tests; `make faults` runs hundreds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation import leaving_seeds, several_seeds, step_seeds, strikes
from tests.simulation.planted import found_by
from tests.simulation.seeds import run_block, run_seed
from tests.simulation.test_seeds import told

pytestmark = pytest.mark.slow

RunBlock = Callable[[int, int], tuple[dict[int, list[str]], object]]


@pytest.mark.parametrize(
    ("run", "last"),
    [
        pytest.param(run_block, 40, id="counts"),
        pytest.param(step_seeds.run_block, 6, id="steps"),
        pytest.param(several_seeds.run_block, 12, id="several"),
        pytest.param(lambda first, last: strikes.run_block(first, last)[:2], 22, id="strikes"),
        pytest.param(leaving_seeds.run_block, 3, id="leaving"),
    ],
)
def test_no_seed_loses_doubles_or_reorders(run: RunBlock, last: int) -> None:
    failed, _ = run(0, last)
    assert not failed, told(failed)


def test_no_seed_loses_doubles_or_reorders_on_rocksdb(tmp_path: Path) -> None:
    failed, _ = run_block(0, 8, tmp_path)
    assert not failed, told(failed)


@pytest.mark.parametrize(
    "bug", ["state_written_before_the_transaction_commits", "tasks_go_on_after_an_abort"]
)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert found_by(bug, lambda seed: run_seed(seed)[0], 20) is not None
