"""Seeds beyond those that are run each time."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import run_block
from tests.simulation.test_seeds import BLOCK, IN_MEMORY, told

pytestmark = [pytest.mark.slow, pytest.mark.long]

LAST = 3_000


@pytest.mark.parametrize("first", range(IN_MEMORY, LAST, BLOCK))
def test_no_seed_loses_doubles_or_reorders(first: int) -> None:
    failed, _ = run_block(first, first + BLOCK)
    assert not failed, told(failed)
