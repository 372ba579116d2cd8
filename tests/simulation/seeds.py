"""Running many seeds, two processes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.simulation import FaultPlan, Simulation, SimulationResult
from tests.simulation.blocks import run_each
from tests.simulation.example import example_inputs, example_topology
from tests.simulation.recount import differences

AT_LEAST_ONCE = {"processing.guarantee": "at_least_once", "commit.interval.ms": 200}


ZOMBIES = FaultPlan(
    rate=0.2,
    crashes=0.3,
    stalls=1.5,
    restarts=3.0,
    calls=frozenset({"rebalance", "delivery", "committed", "probe", "consume"}),
    kinds=frozenset({"stall", "delay", "max_poll"}),
)
"""Workers that lose their place while a rebalance is under way, and come back."""


def settings_of(seed: int) -> dict[str, Any]:
    """Every fifth seed runs at least once; some keep their place in the group when they stop."""
    chosen: dict[str, Any] = dict(AT_LEAST_ONCE) if seed % 5 == 4 else {}
    if seed % 3 == 0:
        chosen["on.stop"] = "stay"
    if seed % 7 == 0:
        # A transaction that outlives a session, so that its owner can lose its place meanwhile.
        chosen["producer.transaction.timeout.ms"] = 20_000
    return chosen


def plan_of(seed: int) -> FaultPlan:
    """Without transactions nothing fences a zombie, whose rows then overwrite its successor's."""
    if seed % 5 == 4:
        return FaultPlan(longest_stall=3.0)
    return ZOMBIES if seed % 10 == 3 else FaultPlan()


def inputs_of(seed: int) -> dict[str, list[tuple[Any, Any]]]:
    """What comes while a zombie has not heard of its loss is what it can double: so much input."""
    return example_inputs(seed, 300 if seed % 10 == 3 else 60)


def simulation_of(seed: int, faults: FaultPlan | None = None) -> Simulation:
    return Simulation(
        example_topology(),
        inputs=inputs_of(seed),
        settings=settings_of(seed),
        workers=2 if seed % 10 == 3 else 1 + seed % 3,
        faults=faults or plan_of(seed),
    )


def problems_of(seed: int, result: SimulationResult) -> list[str]:
    exactly_once = seed % 5 != 4
    rows = inputs_of(seed)["rows"]
    return [*differences(result, rows, exactly_once=exactly_once), *result._check_states()]


def run_seed(
    seed: int, state_dir: Path | None = None, faults: FaultPlan | None = None
) -> tuple[list[str], Mapping[tuple[str, str], int]]:
    """Run one seed and say what was wrong, and which faults there were."""
    result = simulation_of(seed, faults).run(seed, state_dir=state_dir)
    return problems_of(seed, result), result.faults


def run_block(
    first: int, last: int, state_dir: Path | None = None
) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    return run_each(run_seed, first, last, state_dir)
