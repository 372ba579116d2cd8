"""Workers that leave while the group shares out its partitions lose nothing that came meanwhile."""

from __future__ import annotations

import pytest

from tests.simulation.leaving_seeds import run_block, run_seed
from tests.simulation.planted import found_by
from tests.simulation.test_seeds import told

pytestmark = [pytest.mark.slow, pytest.mark.faults]

SEEDS = 20


def test_nothing_is_lost_or_doubled_where_workers_come_and_go() -> None:
    failed, faults = run_block(0, SEEDS)
    assert not failed, told(failed)
    assert faults["process", "restarted"] > 10 * SEEDS


def test_a_planted_bug_is_found() -> None:
    bug = "what_a_client_drops_is_passed_in_its_last_callback"
    assert found_by(bug, lambda seed: run_seed(seed)[0], SEEDS) is not None
