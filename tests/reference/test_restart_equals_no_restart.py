"""A restart changes nothing: random programs, disturbed at any commit, against the same in peace.

``python -m tests.reference --restarts --seeds 1000`` compares more of them.

All records are compared, those of changelogs and repartition topics too, byte for byte. What nobody
promises is decided beforehand, and the same in both runs: which task goes first, where records
without a key go, what the clock says. At-least-once may repeat records, but not at clean restarts
and rebalances, so nothing else happens under it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference.disturbed import (
    BETWEEN,
    COMMIT_STEPS,
    Comparison,
    Setting,
    compare,
    disturbances_of,
    setting_of,
)

PROGRAMS = 200
PARTS = 4
FEW = 1
"""Parts that are compared with all tests; `make faults` compares the others."""
_PARTS = [
    pytest.param(part, marks=[] if part < FEW else [pytest.mark.faults]) for part in range(PARTS)
]


@pytest.mark.parametrize("part", _PARTS)
def test_what_is_disturbed_comes_to_the_same_as_what_is_not(part: int) -> None:
    found = [compare(seed) for seed in range(part, PROGRAMS, PARTS)]
    compared = [one for one in found if one is not None]
    assert len(compared) > len(found) * 0.8
    assert _stores_of(compared) == {"plain", "window", "session", "versioned"}


def _stores_of(compared: list[Comparison]) -> set[str]:
    return {layout for one in compared for layout in one.held}


def test_all_that_can_happen_is_drawn() -> None:
    drawn = {d for seed in range(PROGRAMS) for d in disturbances_of(seed, 10, Setting()).values()}
    assert {d.what for d in drawn if d.when == "before"} == {*BETWEEN}
    assert {d.what for d in drawn if d.when == "behind"} == {*BETWEEN}
    assert {d.what.split()[0] for d in drawn if d.when == "in"} == {*COMMIT_STEPS}


def test_the_same_holds_on_disk(tmp_path: Path) -> None:
    found = [
        compare(seed, replace(setting_of(seed), on_disk=str(tmp_path / f"{seed}")))
        for seed in range(20_000, 20_008)
    ]
    assert sum(one is not None for one in found) > 5
