"""A process that is killed leaves rows that its positions may be built upon."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.state.crash_child import KEYS, STORES, at, opened

ROOT = Path(__file__).parents[2]


def killed(what: str, path: Path, *, after: int, within_s: float = 0.05, seed: int = 0) -> str:
    """Let a child run until it has said `after` lines and a little longer; return its last one."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.state.crash_child", what, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        said = [child.stdout.readline() for _ in range(after)]
        time.sleep(random.Random(seed).uniform(0, within_s))
    finally:
        child.kill()
    said += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    return next(line for line in reversed(said) if line.endswith("\n")).strip()


def seeds(count: int) -> list[Any]:
    """Each is a process, and the first one tells most."""
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]


@pytest.mark.parametrize("seed", seeds(5))
def test_a_kill_leaves_the_state_before_or_after_a_write(tmp_path: Path, seed: int) -> None:
    last = int(killed("writes", tmp_path, after=2 + 7 * seed, seed=seed))
    state = opened(tmp_path)
    places = {state.position(name) for name in STORES}
    assert len(places) == 1
    place = places.pop()
    assert place is not None
    # The write that was under way may have come through, but no other.
    assert place.offset in (last, last + 1)
    for name in STORES:
        assert list(state.store(name).scan()) == [(key, b"%d" % place.offset) for key in KEYS]
    state.close()


@pytest.mark.slow
def test_a_kill_within_a_restore_leaves_the_old_position_and_a_replay_mends_the_rows(
    tmp_path: Path,
) -> None:
    last = int(killed("restore_over_old", tmp_path, after=120))
    state = opened(tmp_path)
    assert state.position("a") == at(1)
    rows = dict(state.store("a").scan())
    assert list(rows) == KEYS
    assert {int(value) for value in rows.values()} <= set(range(1, last + 2))
    state.begin_restore()
    for offset in range(2, last + 1):
        state.restore({"a": [(key, b"%d" % offset) for key in KEYS]})
    state.end_restore({"a": at(last)})
    assert list(state.store("a").scan()) == [(key, b"%d" % last) for key in KEYS]
    state.close()


@pytest.mark.slow
def test_rows_of_a_killed_restore_from_nothing_are_not_built_upon(tmp_path: Path) -> None:
    killed("restore_from_nothing", tmp_path, after=400)
    state = opened(tmp_path)
    assert state.position("a") is None
    # Otherwise this shows nothing: some rows must have reached a file.
    assert next(state.store("a").scan(), None) is not None
    state.begin_restore()
    assert next(state.store("a").scan(), None) is None
    state.close()


@pytest.mark.parametrize("seed", seeds(3))
def test_a_kill_right_after_a_restore_loses_no_restored_row(tmp_path: Path, seed: int) -> None:
    killed("restore_then_write", tmp_path, after=1, seed=seed)
    state = opened(tmp_path)
    place = state.position("a")
    assert place is not None
    assert place.offset >= 2
    assert [key for key, _ in state.store("a").scan()] == [*KEYS, b"one more"]
    assert [key for key, _ in state.store("b").scan()] == KEYS
    state.close()


def test_a_kill_keeps_what_a_restore_that_was_given_up_wrote_below_a_later_position(
    tmp_path: Path,
) -> None:
    """The end of the next restore, of another store, is the last chance to make it durable."""
    killed("restore_given_up_then_another", tmp_path, after=1)
    state = opened(tmp_path)
    assert dict(state.store("a").scan()).keys() == {*KEYS, b"given up", b"one more"}
    assert [key for key, _ in state.store("b").scan()] == KEYS
    state.close()


@pytest.mark.parametrize("seed", seeds(3))
def test_a_kill_while_a_store_is_dropped_leaves_no_position_over_missing_rows(
    tmp_path: Path, seed: int
) -> None:
    killed("drops", tmp_path, after=3 + seed, seed=seed)
    state = opened(tmp_path)
    place = state.position("a")
    if place is not None:
        assert list(state.store("a").scan()) == [(key, b"%d" % place.offset) for key in KEYS]
    assert [key for key, _ in state.store("b").scan()] == KEYS
    state.close()
