"""Running many seeds of `several`: what may end an application, full disks, clocks and caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.simulation import FaultPlan, Simulation, SimulationResult
from headrace.streams.simulation.run import DISASTERS
from tests.simulation import seeds
from tests.simulation.blocks import run_each
from tests.simulation.several import differences, expected_of, several_inputs, several_topology

TOPOLOGY = several_topology()
NAMES = (None, *(name for name in DISASTERS if name != "restored snapshot"))

Counts = Mapping[tuple[str, str], int]


def disaster_of(seed: int) -> str | None:
    return NAMES[seed % len(NAMES)]


def exactly_once_of(seed: int) -> bool:
    """Every fifth run without a disaster is at least once."""
    return disaster_of(seed) is not None or seed // len(NAMES) % 5 != 4


def is_cached(seed: int) -> bool:
    """Every third seed has the default caches, half of them default settings altogether."""
    return seed // len(NAMES) % 3 == 1


def settings_of(seed: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {} if exactly_once_of(seed) else dict(seeds.AT_LEAST_ONCE)
    if is_cached(seed):
        # None takes the default back over that of simulations.
        chosen["statestore.cache.max.bytes"] = None
        if seed % 2:
            chosen |= dict.fromkeys(("poll.ms", "max.poll.records", "commit.interval.ms"))
    if seed % 4 == 0:
        chosen["on.stop"] = "stay"
    return chosen


def plan_of(seed: int) -> FaultPlan:
    disaster = disaster_of(seed)
    stalls = 16.0 if exactly_once_of(seed) else 3.0
    return FaultPlan(
        rate=0.01, longest_stall=stalls, full_disks=1.0, clock_jumps=1.0, disaster=disaster
    )


def simulation_of(seed: int, faults: FaultPlan | None = None) -> Simulation:
    return Simulation(
        TOPOLOGY,
        inputs=several_inputs(seed),
        settings=settings_of(seed),
        workers=1 + seed % 3,
        faults=faults or plan_of(seed),
    )


def problems_of(seed: int, result: SimulationResult) -> list[str]:
    """What is neither as it should be, nor named by an error that ended the application."""
    inputs = several_inputs(seed)
    if not result.refusals:
        # Who deletes a topic of which nothing was read has lost the records, and nobody else.
        inputs = {topic: result.inputs(topic) for topic in inputs}
    found = differences(
        result,
        expected_of(inputs),
        exactly_once=exactly_once_of(seed),
        cached=is_cached(seed),
    )
    states = [] if result.refusals else result._check_states()
    return [*result.problems, *found, *states]


def run_seed(
    seed: int, state_dir: Path | None = None, faults: FaultPlan | None = None
) -> tuple[list[str], Counts]:
    """Run one seed and say what was wrong, and which faults there were."""
    result = simulation_of(seed, faults).run(seed, state_dir=state_dir)
    refusals = Counter(("refused", text.split(":")[0]) for text in result.refusals)
    return problems_of(seed, result), result.faults + refusals


def run_block(
    first: int, last: int, state_dir: Path | None = None
) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    return run_each(run_seed, first, last, state_dir)
