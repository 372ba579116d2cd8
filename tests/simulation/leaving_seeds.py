"""Running seeds in which workers come and go all the time, while input comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from headrace.simulation import FaultPlan, Simulation
from tests.simulation.blocks import run_each
from tests.simulation.example import example_inputs, example_topology
from tests.simulation.recount import differences

ROWS = 600
COMINGS = FaultPlan(rate=0.0001, crashes=0, stalls=0, restarts=30)


def run_seed(
    seed: int, state_dir: Path | None = None
) -> tuple[list[str], Mapping[tuple[str, str], int]]:
    """Run one seed and say what was wrong, and how often a worker left.

    Positions are looked at in each commit, the last one within a callback too.
    """
    inputs = example_inputs(seed, ROWS)
    simulation = Simulation(
        example_topology(),
        inputs=inputs,
        settings={"commit.interval.ms": 0},
        workers=4,
        faults=COMINGS,
    )
    result = simulation.run(seed, state_dir=state_dir)
    wrong = differences(result, inputs["rows"], exactly_once=True)
    return [*wrong, *result.problems, *result._check_states()], result.faults


def run_block(first: int, last: int) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    return run_each(run_seed, first, last)
