from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import AccessType, Rdict

from headrace.state.directory import StateDirectory, TaskDirectory
from headrace.state.errors import StateDirectoryError, StateLockedError
from tests.state.holders import holding

AS_ROOT = os.geteuid() == 0


class Time:
    """Time that passes by sleeping alone, and what happens meanwhile."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        self.then: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.append(seconds)
        self.then()

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def directory(tmp_path: Path, time: Time) -> StateDirectory:
    return StateDirectory(tmp_path, "app", sleep=time.sleep, monotonic=time.monotonic)


def tasks(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "app" / "tasks").iterdir() if path.is_dir())


def test_a_task_has_its_directory_below_the_application(
    directory: StateDirectory, tmp_path: Path
) -> None:
    """Trap 35: one lock for each task, none for the application."""
    task = directory.acquire_task("0_1", wait_ms=0)
    assert (task.path, task.generation) == (tmp_path / "app" / "tasks" / "0_1", 0)
    assert task.path.is_dir()


def test_nothing_but_the_state_is_in_a_tasks_directory(directory: StateDirectory) -> None:
    """RocksDB may be given the directory whole, and it may be removed whole."""
    assert list(directory.acquire_task("0_1", wait_ms=0).path.iterdir()) == []


def test_a_released_task_keeps_its_files(directory: StateDirectory) -> None:
    first = directory.acquire_task("0_1", wait_ms=0)
    (first.path / "rows").write_text("mine")
    first.release()
    again = directory.acquire_task("0_1", wait_ms=0)
    assert (again.generation, (again.path / "rows").read_text()) == (0, "mine")


def test_two_workers_of_one_process_do_not_share_a_task(
    directory: StateDirectory, tmp_path: Path
) -> None:
    first = directory.acquire_task("0_1", wait_ms=0)
    other = StateDirectory(tmp_path, "app").acquire_task("0_1", wait_ms=0)
    assert first.path != other.path


def test_tasks_do_not_lock_each_other(directory: StateDirectory) -> None:
    held = [directory.acquire_task(task, wait_ms=0) for task in ("0_1", "0_11", "1_1")]
    assert [task.generation for task in held] == [0, 0, 0]


def test_a_holder_that_lets_go_in_time_is_waited_for(
    directory: StateDirectory, tmp_path: Path, time: Time
) -> None:
    with holding("task", tmp_path) as holder:

        def end_after_three() -> None:
            if len(time.slept) == 3:
                holder.kill()

        time.then = end_after_three
        task = directory.acquire_task("0_1", wait_ms=60_000)
    assert len(time.slept) == 3
    assert (task.generation, (task.path / "rows").read_text()) == (0, "mine")


def test_a_holder_that_does_not_let_go_is_passed_by_with_an_empty_generation(
    directory: StateDirectory, tmp_path: Path, time: Time
) -> None:
    with holding("task", tmp_path) as holder:
        assert holder.said == "0 0_1"
        task = directory.acquire_task("0_1", wait_ms=1_000)
        assert (task.generation, task.path.name, list(task.path.iterdir())) == (1, "0_1.g1", [])
        assert tasks(tmp_path) == ["0_1", "0_1.g1"]
    assert 1.0 <= sum(time.slept) < 1.2


def test_the_newest_generation_is_taken_and_older_ones_go_when_nobody_holds_them(
    directory: StateDirectory, tmp_path: Path
) -> None:
    with holding("task", tmp_path):
        task = directory.acquire_task("0_1", wait_ms=0)
        (task.path / "rows").write_text("newer")
        task.release()
        held_still = directory.acquire_task("0_1", wait_ms=0)
        assert held_still.generation == 1
        assert tasks(tmp_path) == ["0_1", "0_1.g1"]
        held_still.release()
    again = directory.acquire_task("0_1", wait_ms=0)
    assert (again.generation, (again.path / "rows").read_text()) == (1, "newer")
    assert tasks(tmp_path) == ["0_1.g1"]


def test_generations_go_on_when_each_one_is_held(directory: StateDirectory) -> None:
    held = [directory.acquire_task("0_1", wait_ms=0) for _ in range(12)]
    assert [task.generation for task in held] == list(range(12))
    for task in held:
        task.release()
    assert directory.acquire_task("0_1", wait_ms=0).generation == 11


def test_a_generation_that_appears_while_waiting_is_the_one_to_wait_for(
    directory: StateDirectory, tmp_path: Path, time: Time
) -> None:
    """Its state is newer than that of the holder that was passed by."""
    first = directory.acquire_task("0_1", wait_ms=0)

    def pass_by() -> None:
        if len(time.slept) == 1:
            second = StateDirectory(tmp_path, "app").acquire_task("0_1", wait_ms=0)
            (second.path / "rows").write_text("newer")
            second.release()
            first.release()

    time.then = pass_by
    task = directory.acquire_task("0_1", wait_ms=10_000)
    assert (task.generation, (task.path / "rows").read_text()) == (1, "newer")


def test_a_generation_that_appears_between_look_and_lock_is_taken(
    directory: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = directory.acquire_task("0_1", wait_ms=0)
    right = StateDirectory._try

    def after_another(self: StateDirectory, task_id: str, generation: int) -> TaskDirectory | None:
        monkeypatch.setattr(StateDirectory, "_try", right)
        second = StateDirectory(tmp_path, "app").acquire_task("0_1", wait_ms=0)
        (second.path / "rows").write_text("newer")
        second.release()
        first.release()
        return right(self, task_id, generation)

    monkeypatch.setattr(StateDirectory, "_try", after_another)
    task = directory.acquire_task("0_1", wait_ms=0)
    assert (task.generation, (task.path / "rows").read_text()) == (1, "newer")


def test_a_killed_holder_holds_nothing(directory: StateDirectory, tmp_path: Path) -> None:
    with holding("task", tmp_path) as holder:
        holder.kill()
        assert directory.acquire_task("0_1", wait_ms=0).generation == 0


@pytest.mark.slow
def test_of_several_processes_one_has_a_generation(tmp_path: Path) -> None:
    with (
        holding("task", tmp_path) as one,
        holding("task", tmp_path) as two,
        holding("task", tmp_path) as three,
    ):
        assert [h.said for h in (one, two, three)] == ["0 0_1", "1 0_1.g1", "2 0_1.g2"]


def test_a_started_program_does_not_inherit_the_lock(directory: StateDirectory) -> None:
    task = directory.acquire_task("0_1", wait_ms=0)
    wait = [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(wait, stdin=pipe, stdout=pipe, close_fds=False) as child:
        assert child.stdout is not None
        child.stdout.readline()
        task.release()
        assert directory.acquire_task("0_1", wait_ms=0).generation == 0
        child.communicate()


def test_a_forked_child_does_not_inherit_the_lock(directory: StateDirectory) -> None:
    """The child would hold the task beyond the death of its parent."""
    task = directory.acquire_task("0_1", wait_ms=0)
    until, end = os.pipe()
    here, say = os.pipe()
    child = os.fork()
    if child == 0:  # waits for the end of the test, then ends without a word
        os.close(end)
        os.write(say, b".")
        os.read(until, 1)
        os._exit(0)
    os.read(here, 1)
    try:
        task.release()
        assert directory.acquire_task("0_1", wait_ms=0).generation == 0
    finally:
        for file in (until, end, here, say):
            os.close(file)
        os.waitpid(child, 0)


def test_a_fork_does_not_end_the_parents_lock(directory: StateDirectory) -> None:
    task = directory.acquire_task("0_1", wait_ms=0)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert directory.acquire_task("0_1", wait_ms=0).generation == 1
    task.release()


def test_a_wiped_task_is_empty_and_still_locked(directory: StateDirectory, tmp_path: Path) -> None:
    task = directory.acquire_task("0_1", wait_ms=0)
    (task.path / "rows").write_text("mine")
    task.wipe()
    assert list(task.path.iterdir()) == []
    assert tasks(tmp_path) == ["0_1"]
    assert directory.acquire_task("0_1", wait_ms=0).generation == 1


def test_a_reader_that_opens_files_while_they_are_wiped_does_not_stop_the_wipe(
    directory: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB's client creates the directory of files that it opens, for readers too."""
    task = directory.acquire_task("0_1", wait_ms=0)
    remove = shutil.rmtree

    def remove_while_it_is_read(path: Path) -> None:
        remove(path)
        reader = AccessType.secondary(str(tmp_path / "reader"))
        with pytest.raises(Exception, match="No such file"):
            Rdict(str(task.path / "rocksdb"), access_type=reader)

    monkeypatch.setattr(shutil, "rmtree", remove_while_it_is_read)
    task.wipe()
    assert [path.name for path in task.path.iterdir()] == ["rocksdb"], "created by the reader"


def test_what_an_interrupted_wipe_left_over_goes_with_the_next_owner(
    directory: StateDirectory, tmp_path: Path
) -> None:
    task = directory.acquire_task("0_1", wait_ms=0)
    (task.path / "rows").write_text("half of it")
    task.path.rename(task.path.with_name("0_1.trash"))
    task.release()
    again = directory.acquire_task("0_1", wait_ms=0)
    assert (tasks(tmp_path), list(again.path.iterdir())) == (["0_1"], [])


def test_a_lock_on_a_file_that_was_removed_is_no_lock(
    directory: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, another owner may remove the file and a third make a new one."""
    locks = tmp_path / "app" / "tasks"
    opening = os.open
    opened: list[int] = []

    def open_then_lose(path: Path, flags: int, mode: int) -> int:
        file = opening(path, flags, mode)
        if not opened:
            (locks / "0_1.lock").unlink()
        opened.append(file)
        return file

    monkeypatch.setattr("headrace.state.directory.os.open", open_then_lose)
    task = directory.acquire_task("0_1", wait_ms=0)
    monkeypatch.undo()
    assert len(opened) == 2
    assert directory.acquire_task("0_1", wait_ms=0).generation == 1
    task.release()


def test_a_file_in_the_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StateDirectoryError, match=r"state\.dir"):
        StateDirectory(tmp_path / "state", "app")


@pytest.mark.skipif(AS_ROOT, reason="nothing is forbidden to root")
def test_a_directory_without_rights_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StateDirectoryError, match=r"state\.dir"):
        StateDirectory(tmp_path, "app")
    tmp_path.chmod(0o700)


def test_a_task_directory_that_cannot_be_made_is_reported_and_not_locked(
    directory: StateDirectory, tmp_path: Path
) -> None:
    obstacle = tmp_path / "app" / "tasks" / "0_1"
    obstacle.write_text("")
    with pytest.raises(StateDirectoryError, match="0_1"):
        directory.acquire_task("0_1", wait_ms=0)
    obstacle.unlink()
    assert directory.acquire_task("0_1", wait_ms=0).generation == 0


def test_all_of_an_applications_tasks_can_be_claimed_and_removed(
    directory: StateDirectory, tmp_path: Path
) -> None:
    passed_by = directory.acquire_task("0_1", wait_ms=0)
    directory.acquire_task("0_1", wait_ms=0).release()
    passed_by.release()
    rest = directory.acquire_task("1_0", wait_ms=0)
    rest.path.rename(rest.path.with_name("1_0.trash"))
    rest.release()
    claimed = directory.claim_all()
    assert [(task.path.name, task.generation) for task in claimed] == [
        ("0_1", 0),
        ("0_1.g1", 1),
        ("1_0", 0),
    ]
    for task in claimed:
        task.remove()
    assert tasks(tmp_path) == []
    assert directory.try_task("0_1") is None
    for task in claimed:
        task.release()
    assert directory.try_task("0_1") is not None


def test_of_tasks_of_which_one_is_held_none_is_claimed(directory: StateDirectory) -> None:
    directory.acquire_task("0_0", wait_ms=0).release()
    held = directory.acquire_task("0_1", wait_ms=0)
    with pytest.raises(StateLockedError, match=f"task 0_1 .* process {os.getpid()}"):
        directory.claim_all()
    assert directory.try_task("0_0") is not None
    held.release()
