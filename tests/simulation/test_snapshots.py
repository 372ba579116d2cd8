"""A cluster that goes back to a snapshot and grows past its old end: local rows are not kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.simulation import FaultPlan, Simulation, SimulationResult
from tests.simulation.planted import BUGS_OF_SNAPSHOTS, found_by
from tests.simulation.several import INPUTS, differences, expected_of
from tests.simulation.several_seeds import TOPOLOGY

pytestmark = [pytest.mark.slow, pytest.mark.faults]

SEEDS = 40
ON_ROCKSDB = 6


def inputs_of(seed: int) -> dict[str, list[tuple[Any, Any]]]:
    """Many keys: a row of the lost records is seen only if its key is not written again soon."""
    dice = random.Random(f"snapshots/{seed}")
    return {
        topic: [(f"k{dice.randrange(60)}", dice.randrange(100)) for _ in range(150)]
        for topic in INPUTS
    }


def run(seed: int, state_dir: Path | None = None) -> SimulationResult:
    simulation = Simulation(
        TOPOLOGY,
        inputs=inputs_of(seed),
        workers=3,
        faults=FaultPlan(rate=0.003, disaster="restored snapshot"),
    )
    return simulation.run(seed, state_dir=state_dir)


def problems_of(seed: int, state_dir: Path | None = None) -> Sequence[str]:
    result = run(seed, state_dir)
    inputs = {topic: result.inputs(topic) for topic in INPUTS}
    found = differences(result, expected_of(inputs), exactly_once=True, cached=False)
    return [*result.problems, *result.refusals, *found, *result._check_states()]


def test_no_row_of_the_lost_records_is_counted() -> None:
    failed = {seed: found for seed in range(SEEDS) if (found := problems_of(seed))}
    assert not failed, failed


def test_no_row_of_the_lost_records_is_counted_on_rocksdb(tmp_path: Path) -> None:
    failed = {s: found for s in range(ON_ROCKSDB) if (found := problems_of(s, tmp_path / f"{s}"))}
    assert not failed, failed


@pytest.mark.parametrize("bug", BUGS_OF_SNAPSHOTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert found_by(bug, problems_of, SEEDS) is not None
