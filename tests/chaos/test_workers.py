"""Worker processes of chaos runs: whom a signal may reach, and what a crash leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.crashes import take_core
from tests.chaos.diary import Diary
from tests.chaos.status import Field
from tests.chaos.workers import BOTH_SHORT, ROOT, Fleet, Place, Slot
from tests.support.patience import PATIENCE_S

CRASHING = "from tests.chaos.crashes import let_dump; let_dump(); import os; os.abort()"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    diary = Diary(tmp_path / "diary.jsonl")
    yield Fleet(
        tmp_path,
        prefix="",
        bootstrap="",
        guarantee="exactly_once_v2",
        caches=False,
        places=[Place("w0", "a", BOTH_SHORT)],
        diary=diary,
        settings={},
    )
    diary.close()


@pytest.fixture
def slot(fleet: Fleet) -> Iterator[Slot]:
    (found,) = fleet.slots
    found.process = subprocess.Popen(["sleep", "60"])
    yield found
    found.process.kill()
    found.process.wait()


def test_a_process_is_asked_for_its_stacks_once_it_listens(fleet: Fleet, slot: Slot) -> None:
    assert slot.process is not None
    fleet.dump(slot)
    assert slot.process.poll() is None
    slot.status[Field.PID] = slot.process.pid  # it says so when it listens, and this one lies
    fleet.dump(slot)
    assert slot.process.wait(PATIENCE_S) == -signal.SIGUSR1


def test_a_crash_leaves_its_stack_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "w0.log"
    done = subprocess.run(
        [sys.executable, "-c", CRASHING],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -signal.SIGABRT
    core = take_core(tmp_path, log)
    if core is None:
        pytest.skip("cores are written to another place here, or not at all")
    assert core.stat().st_size
    assert not list(tmp_path.glob("core*"))
    if log.exists():
        assert "abort" in log.read_text()


def test_time_that_is_excused_does_not_count(fleet: Fleet) -> None:
    looks = iter([True] * 20)
    began_s = time.monotonic()
    assert not fleet.wait(lambda: False, seconds=0.02, excused=lambda: next(looks, False))
    assert time.monotonic() - began_s > 20 * 0.005
