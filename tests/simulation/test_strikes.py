"""Every call in every phase is struck, every reaction is met, and nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.simulation import CALLS
from headrace.streams.simulation.run import DISASTERS
from headrace.streams.simulation.world.coverage import PHASES, Coverage
from headrace.streams.simulation.world.faults import WEIGHTS
from tests.simulation.cores import make_pool
from tests.simulation.planted import BUGS_OF_STRIKES, found_by
from tests.simulation.strikes import (
    SELDOM,
    UNREACHABLE,
    disaster_of,
    problems_of,
    run_block,
    run_seed,
    simulation_of,
    targets,
)

pytestmark = [pytest.mark.slow, pytest.mark.faults]

ROUNDS = 5
"""How often each call is in focus in each phase, once of these at least once."""
LEAST = 3
FEW_MAX = 10
"""How many calls in a phase may be struck less often; never may not."""
BLOCK = 25
RANGE = ROUNDS * len(targets())
FIRSTS = range(0, RANGE, BLOCK)

REACTIONS: dict[str, tuple[str, ...]] = {
    "transaction_aborted": ("joining", "running", "committing"),
    "producer_replaced": ("running", "committing"),
    "member_replaced": ("running", "restoring"),
    "state_rebuilt": ("restoring", "committing"),
    "partitions_assigned": ("joining", "restoring", "running"),
    "partitions_revoked": ("restoring", "running", "closing"),
    "partitions_lost": ("restoring", "running"),
    "offsets_undecided": ("restoring", "running"),
    "rebalance_requested": ("joining",),
    "last_commit_failed": ("closing",),
}
"""What workers do, and in which phases that is met at least so often."""

MET_ONCE = {
    ("member_replaced", "restoring"),
    ("transaction_aborted", "running"),
}
"""Met seldom: who keeps up commits soon, so little is open between, and restores are short."""

MET_ELSEWHERE = {
    "offset_lost": "another worker purges what is read: test_worker_reactions.py",
    "restore_lost": "no changelog loses its beginning: test_worker_reactions.py",
    "store_dropped": "rows of another changelog need a disaster: test_restore.py",
}
"""Reactions that are met seldom or not at all here, and where in tests/streams they are tested."""

Found = tuple[dict[int, list[str]], Coverage, Counter[Any]]


@pytest.fixture(scope="module")
def blocks() -> Iterator[dict[int, Any]]:
    pool = make_pool()
    yield {first: pool.submit(run_block, first, min(first + BLOCK, RANGE)) for first in FIRSTS}
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def met(blocks: dict[int, Any]) -> Coverage:
    """What all seeds have met together."""
    coverage = Coverage()
    for future in blocks.values():
        coverage.add(future.result()[1])
    return coverage


def table(counts: Counter[tuple[str, str]]) -> str:
    """Calls by phases, for a failure's report."""
    head = f"{'':28} " + " ".join(f"{phase:>10}" for phase in PHASES)
    rows = [
        f"{name:28} " + " ".join(f"{counts[name, phase]:>10}" for phase in PHASES)
        for name in sorted({name for name, _ in counts})
    ]
    return "\n".join([head, *rows])


@pytest.mark.parametrize("first", FIRSTS)
def test_no_seed_loses_doubles_or_disorders(first: int, blocks: dict[int, Any]) -> None:
    failed, _, _ = blocks[first].result()
    lines = [f"seed {seed}: {problems[0][:500]}" for seed, problems in failed.items()]
    assert not failed, "\n".join(lines)


def test_every_call_is_struck_in_every_phase(met: Coverage) -> None:
    wanted = [pair for pair in dict.fromkeys(targets()) if pair not in SELDOM]
    assert [pair for pair in wanted if not met.struck[pair]] == [], table(met.struck)
    few = [pair for pair in wanted if met.struck[pair] < LEAST]
    assert len(few) <= FEW_MAX, f"struck less than {LEAST} times: {few}\n{table(met.struck)}"


def test_what_is_called_unreachable_is(met: Coverage) -> None:
    """Or the table above would leave out what it should have."""
    reached = [pair for pair in UNREACHABLE if met.calls[pair]]
    assert reached == [], table(met.calls)


def test_every_call_in_every_phase_is_accounted_for() -> None:
    every = {(call, phase) for call in CALLS for phase in PHASES}
    assert UNREACHABLE.keys().isdisjoint(SELDOM)
    assert every == {*targets(), *UNREACHABLE, *SELDOM}


def test_every_reaction_is_met_in_its_phases(met: Coverage) -> None:
    missing = [
        (reaction, phase)
        for reaction, phases in REACTIONS.items()
        for phase in phases
        if met.reactions[reaction, phase] < (1 if (reaction, phase) in MET_ONCE else LEAST)
    ]
    assert missing == [], f"met less than {LEAST} times\n{table(met.reactions)}"


def test_what_is_struck_in_focus_alone_is_struck_in_every_way(blocks: dict[int, Any]) -> None:
    """The other calls are looked at in `test_seeds`."""
    faults: Counter[Any] = Counter()
    for future in blocks.values():
        faults.update(future.result()[2])
    alone = [call for call in CALLS if WEIGHTS.get(call) == 0]
    assert [(c, kind) for c in alone for kind in CALLS[c] if not faults[c, kind]] == []
    assert faults["process", "twins"] > RANGE / 20


def test_every_disaster_is_drawn() -> None:
    assert {disaster_of(seed) for seed in range(RANGE)} == {None, *DISASTERS}


@pytest.mark.parametrize("bug", BUGS_OF_STRIKES)
def test_a_planted_bug_is_found(bug: str) -> None:
    seed = found_by(bug, lambda seed: run_seed(seed)[0], RANGE)
    assert seed is not None
    assert run_seed(seed)[0] == [], "it fails without the bug too"


@pytest.mark.parametrize("seed", [5, 40])
def test_a_seed_does_the_same_again(seed: int, tmp_path: Path) -> None:
    first, second = (simulation_of(seed).run(seed) for _ in range(2))
    assert first.history == second.history
    on_disk = simulation_of(seed).run(seed, state_dir=tmp_path)
    assert problems_of(seed, on_disk) == []
