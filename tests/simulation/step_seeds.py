"""Running many seeds of `steps`, and what must come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.simulation import FaultPlan, Simulation, SimulationResult
from tests.simulation.blocks import run_each
from tests.simulation.seeds import plan_of, settings_of
from tests.simulation.steps import AT_LAST, IN_ORDER, steps_inputs, steps_topology

EVENTS = 60
TOPOLOGY = steps_topology()
"""One for all seeds: it is compiled for each run."""


def simulation_of(seed: int, faults: FaultPlan | None = None) -> Simulation:
    """The run of a seed; guarantee, settings and faults are those of `seeds`."""
    return Simulation(
        TOPOLOGY,
        inputs=steps_inputs(seed, EVENTS),
        settings=settings_of(seed),
        workers=1 + seed % 3,
        faults=faults or plan_of(seed),
    )


def problems_of(seed: int, simulation: Simulation, result: SimulationResult) -> list[str]:
    """What is not as in a run without faults."""
    found = [*result.problems, *result._check_states()]
    expected = simulation.reference()
    exactly_once = seed % 5 != 4
    for topic in (*IN_ORDER, *AT_LAST):
        mine, right = per_key(result.outputs(topic)), per_key(expected.outputs(topic))
        for key in sorted({*mine, *right}):
            words = f"{topic} {key}: {mine.get(key)} instead of {right.get(key)}"
            if exactly_once and not _is_same(topic, mine.get(key, []), right.get(key, [])):
                found.append(words)
            if exactly_once or topic == "sessions":
                continue
            if not _is_there(topic, mine.get(key, []), right.get(key, [])):
                found.append(words)
    if not exactly_once:
        told = [key for key, _ in result.outputs("sessions")]
        wanted = [key for key, _ in expected.outputs("sessions")]
        found += lost_sessions(wanted, [*told, *result.store("sessions")])
    return found


def lost_sessions(wanted: list[Any], there: list[Any]) -> list[str]:
    """The sessions that are not within one that was told, or that is still open.

    After a commit that was refused, rows are ahead of the offsets at at_least_once: a record that
    is read again also meets sessions whose own records had come too late for it. So sessions may
    become one; none may be missing from what they have become.
    """

    def is_within(session: Any, other: Any) -> bool:
        mine, its = session.window, other.window
        same = session.key == other.key
        return bool(same and its.start_ms <= mine.start_ms and mine.end_ms <= its.end_ms)

    return [
        f"sessions {session}: neither told nor open, alone or within another"
        for session in wanted
        if not any(is_within(session, other) for other in there)
    ]


def per_key(rows: list[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """The values of each key, in their order."""
    found: dict[str, list[Any]] = {}
    for key, value in rows:
        found.setdefault(repr(key), []).append(value)
    return found


def _is_same(topic: str, mine: list[Any], right: list[Any]) -> bool:
    return _last(mine) == _last(right) if topic in AT_LAST else mine == right


def _last(values: list[Any]) -> Any:
    """A row that came and went need not have been told at all."""
    return values[-1] if values else None


def _is_there(topic: str, mine: list[Any], right: list[Any]) -> bool:
    """Without transactions what counts may count more, and whatever is told is told again."""
    if topic in ("pairs", "rows"):
        # Which row an event meets is another one where it is read again.
        what = (lambda pair: pair[0]) if topic == "rows" else repr
        return set(map(what, right)) <= set(map(what, mine))
    if topic == "tallies":
        return bool(sum(t[1] for t in mine) >= sum(t[1] for t in right))
    if topic == "named":
        # What was told and never committed stays told; read again it may come and go in one commit.
        return _last(right) is None or bool(_last(mine) == _last(right))
    return bool(mine) or not right


def run_seed(
    seed: int, state_dir: Path | None = None
) -> tuple[list[str], Mapping[tuple[str, str], int]]:
    """Run one seed and say what was wrong, and which faults there were."""
    simulation = simulation_of(seed)
    result = simulation.run(seed, state_dir=state_dir)
    return problems_of(seed, simulation, result), result.faults


def run_block(
    first: int, last: int, state_dir: Path | None = None
) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    return run_each(run_seed, first, last, state_dir)
