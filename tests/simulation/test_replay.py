"""The same seed does the same again, in this process and in another one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.simulation.seeds import simulation_of

SEEDS = (7, 14, 33)

PROGRAM = """
import hashlib
from tests.simulation.seeds import simulation_of
for seed in {seeds}:
    print(hashlib.sha256(simulation_of(seed).run(seed).history.encode()).hexdigest())
"""


def digest(seed: int) -> str:
    return hashlib.sha256(simulation_of(seed).run(seed).history.encode()).hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_has_the_same_history_twice(seed: int) -> None:
    first, second = (simulation_of(seed).run(seed).history for _ in range(2))
    assert first == second
    assert len(first.splitlines()) > 100


def test_another_seed_has_another_history() -> None:
    assert digest(7) != digest(8)


def test_the_history_does_not_depend_on_how_strings_are_hashed() -> None:
    """Sets are ordered by hashes, which differ from process to process."""
    here = [digest(seed) for seed in SEEDS]
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(seeds=SEEDS)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == here


def test_the_history_can_be_read() -> None:
    """Step, virtual time, who, and what happened."""
    lines = simulation_of(7).run(7).history.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    words = "\n".join(lines)
    for what in ("! dies", "commits: records in", "committed: ", "generation ", "[task_started]"):
        assert what in words
