"""A restart changes nothing: random programs, disturbed at any commit, against the same in peace.

HEADRACE_TEST_PROGRAMS says how many; ``python -m tests.reference --restarts`` shows one.

All records are compared, those of changelogs and repartition topics too, byte for byte. What nobody
promises is decided beforehand, and the same in both runs: which task goes first, where records
without a key go, what the clock says. At-least-once has no part in it: it promises repetitions.
"""

from __future__ import annotations

import os
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
)

PROGRAMS = int(os.environ.get("HEADRACE_TEST_PROGRAMS", "200"))
PARTS = 4
SETTINGS = (
    Setting(),
    Setting(caching=True),
    Setting(partitions=3),
    Setting(partitions=3, caching=True),
)


def setting_of(seed: int) -> Setting:
    """Each part has programs of all settings."""
    return SETTINGS[seed // PARTS % len(SETTINGS)]


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_disturbed_comes_to_the_same_as_what_is_not(part: int) -> None:
    found = [compare(seed, setting_of(seed)) for seed in range(part, PROGRAMS, PARTS)]
    compared = [one for one in found if one is not None]
    assert len(compared) > len(found) * 0.8
    assert _stores_of(compared) == {"plain", "window", "session", "versioned"}


def _stores_of(compared: list[Comparison]) -> set[str]:
    return {layout for one in compared for layout in one.held}


def test_all_that_can_happen_is_drawn() -> None:
    drawn = {d for seed in range(PROGRAMS) for d in disturbances_of(seed, 10).values()}
    assert {d.what for d in drawn if d.when == "before"} == {*BETWEEN}
    assert {d.what for d in drawn if d.when == "behind"} == {*BETWEEN}
    assert {d.what.split()[0] for d in drawn if d.when == "in"} == {*COMMIT_STEPS}


def test_the_same_holds_on_disk(tmp_path: Path) -> None:
    found = [
        compare(20_000 + n, replace(SETTINGS[n % len(SETTINGS)], on_disk=str(tmp_path / f"{n}")))
        for n in range(8)
    ]
    assert sum(one is not None for one in found) > 5
