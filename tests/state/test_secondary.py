"""A secondary shows whole commits of the one that writes, and says when it cannot follow."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headrace.state import secondary as module
from headrace.state.directory import StateDirectory
from headrace.state.errors import StateError, StoreCorruptedError
from headrace.state.rocks import RocksMemory, RocksStore, RocksTaskState
from headrace.state.secondary import RocksSecondary, global_files, task_files
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

HERE = Position("topic-a", 7, 3, 1_700_000_000_000)
LATER = Position("topic-a", 9, 4, 1_700_000_000_500)


@pytest.fixture
def state(tmp_path: Path, memory: RocksMemory) -> Iterator[RocksTaskState]:
    state = opened(tmp_path / "db", memory)
    yield state
    state.close()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where secondaries make directories of their own."""
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(own))
    return own


def opened(path: Path, memory: RocksMemory) -> RocksTaskState:
    return RocksTaskState(path, [StoreSpec("a"), StoreSpec("b")], memory=memory)


def beside(path: Path, memory: RocksMemory, *names: str) -> RocksSecondary:
    return RocksSecondary(path / "db", names or ("a", "b"), memory=memory)


def broken(*_: object, **__: object) -> Iterator[tuple[bytes, bytes]]:
    raise StoreCorruptedError("a block does not fit its checksum")


def rows(secondary: RocksSecondary, name: str = "a") -> dict[bytes, bytes]:
    return dict(secondary.store(name).scan())


def test_it_shows_rows_and_position_of_the_commit_it_followed(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory
) -> None:
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    reader = beside(tmp_path, memory)
    assert (rows(reader), reader.position("a"), reader.position("b")) == ({b"k": b"1"}, HERE, None)
    state.write({"a": [(b"k", b"2"), (b"l", b"3")]}, {"a": LATER})
    assert (rows(reader), reader.position("a")) == ({b"k": b"1"}, HERE)
    assert reader.follow()
    assert (rows(reader), reader.position("a")) == ({b"k": b"2", b"l": b"3"}, LATER)
    assert reader.store("a").get_many([b"l", b"m"]) == [b"3", None]
    reader.close()


def test_it_goes_on_over_flushes_and_compactions_of_the_writer(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory
) -> None:
    reader = beside(tmp_path, memory)
    for n in range(5):
        state.begin_restore()
        state.restore({"a": [(b"%05d" % k, b"%d" % n) for k in range(2_000)]})
        state.end_restore({"a": LATER})
        reader = newest(reader, tmp_path, memory)
        assert set(rows(reader).values()) == {b"%d" % n}
    reader.close()


def test_a_restore_is_seen_from_its_begin_to_its_end(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory
) -> None:
    state.write({"a": [(b"k", b"1")]}, {"a": HERE, "b": HERE})
    reader = beside(tmp_path, memory)
    assert not reader.is_restoring
    state.begin_restore()
    assert reader.follow()
    assert reader.is_restoring
    state.restore({"a": [(b"l%d" % n, b"1") for n in reversed(range(1000, 2000))]})
    assert not reader.follow()
    reader.close()
    reader = beside(tmp_path, memory)
    assert reader.is_restoring
    state.restore({"a": [(b"k", b"2"), *((b"l%d" % n, None) for n in range(1000, 2000))]})
    state.end_restore({"a": LATER})
    assert not reader.follow()
    reader.close()
    reader = beside(tmp_path, memory)
    assert (reader.is_restoring, rows(reader)) == (False, {b"k": b"2"})
    reader.close()


def test_a_restore_that_was_cut_off_is_seen_until_a_commit(
    tmp_path: Path, memory: RocksMemory
) -> None:
    state = opened(tmp_path / "db", memory)
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    state.begin_restore()
    state.close()
    state = opened(tmp_path / "db", memory)
    reader = beside(tmp_path, memory)
    assert reader.is_restoring
    state.write({}, {"a": LATER})
    assert reader.follow()
    assert not reader.is_restoring
    reader.close()
    state.close()


def test_it_follows_a_store_that_was_emptied(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory
) -> None:
    state.write({"a": [(b"", b"0"), (b"k", b"1"), (b"\xff" * 40, b"2")]}, {"a": HERE})
    reader = beside(tmp_path, memory)
    state.drop_store("a")
    assert reader.follow()
    assert (rows(reader), reader.position("a")) == ({}, None)
    reader.close()


def test_a_damaged_file_of_rows_hides_none(tmp_path: Path) -> None:
    """RocksDB's own secondary shows the state before the file, and the position after it."""
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 22)
    written = tmp_path / "written"
    state = RocksTaskState(written, [StoreSpec("s")], memory=memory)
    rows = [(b"k%d" % number, b"v" * 60) for number in range(3)]
    state.begin_restore()
    state.restore({"s": rows})
    state.end_restore({"s": Position("id", 18, 7, 0)})
    (file,) = written.glob("*.sst")
    for begin in range(0, file.stat().st_size - 64, 64):
        copy = tmp_path / f"copy-{begin}"
        shutil.copytree(written, copy)
        with (copy / file.name).open("r+b") as damaged:
            damaged.seek(begin)
            damaged.write(bytes(range(64)))
        try:
            view = RocksSecondary(copy, ["s"], memory=memory)
        except StateError:
            continue
        try:
            assert list(view.store("s").scan(None, None)) == rows
        except StoreCorruptedError:
            pass
        finally:
            view.close()
    state.close()
    view = RocksSecondary(written, ["s"], memory=memory)
    assert list(view.store("s").scan(None, None)) == rows
    view.close()


def test_it_cannot_follow_a_store_whose_files_were_broken(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a store gets another family, which a secondary does not know."""
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    reader = beside(tmp_path, memory)
    with monkeypatch.context() as patched:
        patched.setattr(RocksStore, "scan", broken)
        state.drop_store("a")
    assert not reader.follow()
    reader.close()
    reader = beside(tmp_path, memory)
    assert (rows(reader), reader.position("a")) == ({}, None)
    reader.close()


def test_it_cannot_follow_a_writer_that_began_anew_and_reads_on_until_then(
    tmp_path: Path, memory: RocksMemory
) -> None:
    state = opened(tmp_path / "db", memory)
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    reader = beside(tmp_path, memory)
    state.close()
    reader = newest(reader, tmp_path, memory)
    assert rows(reader) == {b"k": b"1"}
    state = opened(tmp_path / "db", memory)
    assert not reader.follow()
    reader.close()
    state.close()


def test_files_that_are_gone_are_said(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory
) -> None:
    reader = beside(tmp_path, memory)
    (tmp_path / "db").rename(tmp_path / "away")
    with pytest.raises(StateError, match="contains no RocksDB"):
        reader.follow()
    with pytest.raises(StateError, match="contains no RocksDB"):
        beside(tmp_path, memory)
    reader.close()


def test_a_store_that_is_not_there_has_no_position(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory
) -> None:
    reader = beside(tmp_path, memory, "a", "later")
    assert reader.position("later") is None
    reader.close()


def test_it_leaves_nothing_behind_wherever_it_is_killed(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, own: Path
) -> None:
    before = {path.name for path in (tmp_path / "db").iterdir()}
    reader = beside(tmp_path, memory)
    for value in (b"1", b"2"):
        state.write({"a": [(b"k", value)]}, {"a": HERE})
        assert reader.follow()
        assert rows(reader) == {b"k": value}
        assert list(own.iterdir()) == []
    reader.close()
    assert list(own.iterdir()) == []
    assert {path.name for path in (tmp_path / "db").iterdir()} == before


def test_one_that_finds_no_directory_for_its_own_says_where_it_needs_one(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, own: Path
) -> None:
    own.rmdir()
    with pytest.raises(StateError, match=rf"requires a directory in {own}: No such .* set TMPDIR"):
        beside(tmp_path, memory)


def test_files_of_tasks_are_those_of_their_newest_generation(
    tmp_path: Path, memory: RocksMemory
) -> None:
    directory = StateDirectory(tmp_path, "app")
    base = tmp_path / "app"
    assert (task_files(base), global_files(base)) == ({}, [])
    assert task_files(tmp_path / "nothing") == {}
    held = directory.acquire_task("0_1", wait_ms=0)
    opened(held.path / "rocksdb", memory).close()
    assert task_files(base) == {"0_1": base / "tasks" / "0_1" / "rocksdb"}
    passed_by = directory.acquire_task("0_1", wait_ms=0)
    assert task_files(base) == {"0_1": base / "tasks" / "0_1" / "rocksdb"}
    opened(passed_by.path / "rocksdb", memory).close()
    assert task_files(base) == {"0_1": base / "tasks" / "0_1.g1" / "rocksdb"}
    opened(directory.acquire_global("w").path / "rocksdb", memory).close()
    assert global_files(base) == [base / "global" / "w" / "rocksdb"]


class Between:
    """What a secondary reads from; something happens when it has caught up."""

    def __init__(self, reader: RocksSecondary, happens: Callable[[], None]) -> None:
        self._real: Any = reader._db
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def try_catch_up_with_primary(self) -> None:
        self._real.try_catch_up_with_primary()
        self._happens()


def test_it_looks_at_nothing_where_nothing_was_written(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = beside(tmp_path, memory)
    assert reader.follow()
    caught_up: list[int] = []
    monkeypatch.setattr(reader, "_db", Between(reader, lambda: caught_up.append(1)))
    assert reader.follow()
    assert caught_up == []
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    assert reader.follow()
    assert (caught_up, rows(reader)) == ([1], {b"k": b"1"})
    reader.close()


def test_what_is_written_while_it_follows_is_seen_the_next_time(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = beside(tmp_path, memory)

    def meanwhile() -> None:
        state.write({"a": [(b"k", b"2")]}, {"a": LATER})

    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    with monkeypatch.context() as patched:
        patched.setattr(reader, "_db", Between(reader, meanwhile))
        assert reader.follow()
    assert rows(reader) == {b"k": b"1"}
    assert reader.follow()
    assert rows(reader) == {b"k": b"2"}
    reader.close()


def flush(state: RocksTaskState, name: str) -> None:
    """Have RocksDB write the newest rows of a store to a file."""
    state._columns[name].flush(True)


def test_it_cannot_follow_rows_that_go_to_a_file_while_it_follows(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = beside(tmp_path, memory)
    state.write({"a": [(b"k", b"1")]}, {"a": HERE, "b": HERE})
    monkeypatch.setattr(reader, "_db", Between(reader, lambda: flush(state, "a")))
    assert not reader.follow()
    reader.close()


@pytest.mark.parametrize("flushed", [["a"], ["a", "default"], ["default"]])
def test_rows_in_files_are_not_hidden_by_those_that_were_read_in_the_log(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, flushed: list[str]
) -> None:
    """A secondary keeps what it read in the log above files; the position is a row as others."""
    state.write({"a": [(b"k", b"1"), (b"gone", b"1")]}, {"a": HERE, "b": HERE})
    reader = beside(tmp_path, memory)
    assert reader.follow()
    state.write({"a": [(b"k", b"2"), (b"gone", None)]}, {"a": LATER})
    for name in flushed:
        flush(state, name) if name in state._columns else state._db.flush(True)
    reader = newest(reader, tmp_path, memory)
    assert reader.store("a").get_many([b"k", b"gone"]) == [b"2", None]
    assert (rows(reader), reader.position("a")) == ({b"k": b"2"}, LATER)
    state.write({"a": [(b"k", b"3")]}, {"a": LATER})
    assert reader.follow()
    assert reader.store("a").get(b"k") == b"3"
    reader.close()


def newest(reader: RocksSecondary, tmp_path: Path, memory: RocksMemory) -> RocksSecondary:
    """The same secondary where it can follow, or else another one."""
    if reader.follow():
        return reader
    reader.close()
    while True:
        try:
            return beside(tmp_path, memory)
        except StateError as error:
            if "try again" not in str(error):  # else the writer compacts at the same time
                raise


@pytest.mark.parametrize("has_log", [False, True])
def test_one_that_has_missed_rows_while_it_was_opened_is_not_used(
    state: RocksTaskState,
    tmp_path: Path,
    memory: RocksMemory,
    monkeypatch: pytest.MonkeyPatch,
    has_log: bool,
) -> None:
    """RocksDB looks for files first and for the log then; rows may have gone from one to other."""
    state.write({"a": [(b"k", b"1")]}, {"a": HERE, "b": HERE})
    real_list, real_logs = module.open_file_list, module._logs
    before = real_list(tmp_path / "db"), real_logs(tmp_path / "db")
    state.write({"a": [(b"k", b"2")]}, {"a": LATER})
    for columns in state._columns.values():
        columns.flush(True)
    if has_log:  # the next commit says how many files there are
        state.write({}, {"a": LATER})
    else:
        state._db.flush(True)  # nothing is left to keep the log for
    kept = [before[0]], [before[1]]
    with monkeypatch.context() as patched:
        patched.setattr(module, "open_file_list", lambda path: (kept[0] or [real_list(path)]).pop())
        patched.setattr(module, "_logs", lambda path: (kept[1] or [real_logs(path)]).pop())
        with pytest.raises(StateError, match="while it was opened; try again"):
            beside(tmp_path, memory)
    reader = beside(tmp_path, memory)
    assert (rows(reader), reader.position("a")) == ({b"k": b"2"}, LATER)
    reader.close()


EMPTIES = """
import sys, threading, time
from pathlib import Path
from headrace.state.secondary import RocksSecondary
from headrace.state.errors import StateError
from headrace.state.rocks import RocksMemory
from headrace.state.rocks import RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

def memory():
    return RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)

path = Path(sys.argv[1])
state = RocksTaskState(path, [StoreSpec("a")], memory=memory())
is_over, followed = False, 0

def read():
    global followed
    reader = None
    while not is_over:
        try:
            if reader is None:
                reader = RocksSecondary(path, ["a"], memory=memory())
            if reader.follow():
                followed += 1
                continue
        except StateError:
            pass
        if reader is not None:
            reader.close()
        reader = None

thread = threading.Thread(target=read)
thread.start()
for n in range(300):
    state.drop_store("a")
    state.write({"a": [(b"k", b"%d" % n)]}, {"a": Position("t", n, n, n)})
    time.sleep(0.002)
is_over = True
thread.join()
print(followed)
"""


@pytest.mark.slow
def test_a_store_that_is_emptied_again_and_again_ends_no_process_that_reads_it(
    tmp_path: Path,
) -> None:
    """Seen: RocksDB ends a process that catches up while a family is dropped and made anew."""
    command = [sys.executable, "-c", EMPTIES, str(tmp_path / "db")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0


def test_no_threads_are_started_to_open_files(
    tmp_path: Path,
    state: RocksTaskState,
    memory: RocksMemory,
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RocksDB would start them anew at each look, of which there are many a second."""
    # What is kept here is removed otherwise.
    monkeypatch.setattr(module.tempfile, "TemporaryDirectory", lambda **_: nullcontext(str(own)))
    secondary = beside(tmp_path, memory)
    assert "Options.max_file_opening_threads: 1\n" in (own / "LOG").read_text()
    secondary.close()


def compact(state: RocksTaskState, name: str) -> None:
    """Have RocksDB write all rows into one file, where it takes their numbers for none."""
    state._columns[name].compact_range(None, None)


@pytest.mark.parametrize("emptied", [False, True])
def test_restored_rows_are_newer_than_what_the_log_has_had_of_them(
    state: RocksTaskState, tmp_path: Path, memory: RocksMemory, emptied: bool
) -> None:
    """A secondary keeps what it read in the log, and a compacted row says no more when it was."""
    state.write({"a": [(b"k", b"1"), (b"gone", b"1")]}, {"a": HERE, "b": HERE})
    reader = beside(tmp_path, memory)
    if emptied:
        state.drop_store("a")
    assert reader.follow()
    state.begin_restore()
    state.restore({"a": [(b"k", b"2"), (b"gone", None)]})
    state.end_restore({"a": LATER})
    compact(state, "a")
    reader = newest(reader, tmp_path, memory)
    assert (rows(reader), reader.position("a")) == ({b"k": b"2"}, LATER)
    reader.close()
