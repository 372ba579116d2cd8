from __future__ import annotations

import gc
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from headrace.state.errors import (
    StateError,
    StateFormatError,
    StateLockedError,
    StoreCorruptedError,
    UnknownStoreError,
)
from headrace.state.rocks import FORMAT_VERSION, RocksMemory, RocksTaskState, converted_errors
from headrace.state.spec import StoreSpec
from headrace.state.store import Position
from tests.state.broken import HERE, break_tables, filled


@pytest.fixture
def state(path: Path, memory: RocksMemory) -> Iterator[RocksTaskState]:
    state = opened(path, memory)
    yield state
    state.close()


def opened(path: Path, memory: RocksMemory, *names: str) -> RocksTaskState:
    return RocksTaskState(path, [StoreSpec(n) for n in names or ("a", "b")], memory=memory)


def rows(state: RocksTaskState, name: str) -> list[tuple[bytes, bytes]]:
    return list(state.store(name).scan())


def test_a_missing_key_reads_as_none(state: RocksTaskState) -> None:
    assert state.store("a").get(b"k") is None
    assert state.store("a").get_many([b"k", b"l"]) == [None, None]


def test_rows_of_different_stores_do_not_mix(state: RocksTaskState) -> None:
    state.write({"a": [(b"k", b"1")], "b": [(b"k", b"2")]}, {})
    assert state.store("a").get(b"k") == b"1"
    assert state.store("b").get_many([b"k"]) == [b"2"]


def test_stores_may_be_called_like_rocksdbs_own_family(path: Path, memory: RocksMemory) -> None:
    state = opened(path, memory, "default")
    state.write({"default": [(b"format", b"mine")]}, {"default": HERE})
    state.close()
    again = opened(path, memory, "default")
    assert rows(again, "default") == [(b"format", b"mine")]
    again.close()


def test_rows_and_positions_are_there_after_a_restart(path: Path, memory: RocksMemory) -> None:
    state = opened(path, memory)
    state.write({"a": [(b"k", b"1"), (b"gone", b"2")]}, {"a": HERE})
    state.write({"a": [(b"gone", None)]}, {})
    state.close()
    again = opened(path, memory)
    assert rows(again, "a") == [(b"k", b"1")]
    assert (again.position("a"), again.position("b")) == (HERE, None)
    again.close()


def test_a_write_that_names_an_unknown_store_changes_nothing(state: RocksTaskState) -> None:
    with pytest.raises(UnknownStoreError, match="nope"):
        state.write({"a": [(b"k", b"1")], "nope": []}, {"a": HERE})
    with pytest.raises(UnknownStoreError, match="nope"):
        state.write({"a": [(b"k", b"1")]}, {"nope": HERE})
    assert (rows(state, "a"), state.position("a")) == ([], None)


def test_a_write_with_a_row_that_is_not_bytes_changes_nothing(state: RocksTaskState) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        state.write({"a": [(b"k", b"1"), (b"l", "text")]}, {"a": HERE})  # type: ignore[list-item]
    assert (rows(state, "a"), state.position("a")) == ([], None)


def test_scans_are_bounded_below_above_and_in_both_directions(state: RocksTaskState) -> None:
    state.write({"a": [(bytes([n]), b"") for n in range(10)]}, {})
    store = state.store("a")

    def keys(start: bytes | None, end: bytes | None, reverse: bool) -> list[int]:
        return [key[0] for key, _ in store.scan(start, end, reverse=reverse)]

    assert keys(b"\x03", b"\x06", False) == [3, 4, 5]
    assert keys(b"\x03", b"\x06", True) == [5, 4, 3]
    assert keys(None, b"\x02", True) == [1, 0]
    assert keys(b"\x08", None, True) == [9, 8]
    assert keys(b"\x06", b"\x03", False) == []
    assert keys(b"\x06", b"\x03", True) == []


def test_the_bounds_of_a_scan_need_not_outlive_the_call(state: RocksTaskState) -> None:
    """RocksDB points into the bytes it was given; freed ones would let a scan run on."""
    state.write({"a": [(b"%08d" % n, b"") for n in range(3_000)]}, {})
    scans = []
    for n in range(0, 3_000, 3):
        scans.append(state.store("a").scan(b"%08d" % n, b"%08d" % (n + 3)))
    gc.collect()
    garbage = [bytes([255]) * 8 for _ in range(10_000)]
    assert [len(list(scan)) for scan in scans] == [3] * 1_000
    assert len(garbage) == 10_000


def test_a_scan_shows_the_rows_of_the_moment_it_began(state: RocksTaskState) -> None:
    state.write({"a": [(b"1", b"old"), (b"2", b"old")]}, {})
    scan = state.store("a").scan()
    state.write({"a": [(b"1", b"new"), (b"2", None), (b"3", b"new")]}, {})
    assert list(scan) == [(b"1", b"old"), (b"2", b"old")]


def test_a_scan_that_nobody_finished_does_not_keep_the_files(
    path: Path, memory: RocksMemory
) -> None:
    state = opened(path, memory)
    state.write({"a": [(b"1", b""), (b"2", b"")]}, {})
    scan = state.store("a").scan()
    assert next(scan) == (b"1", b"")
    state.close()
    opened(path, memory).close()


def test_closing_twice_is_closing_once(path: Path, memory: RocksMemory) -> None:
    state = opened(path, memory)
    state.close()
    state.close()


def test_a_dropped_store_is_empty_has_no_position_and_takes_rows(
    path: Path, memory: RocksMemory
) -> None:
    state = opened(path, memory)
    store = state.store("a")
    state.write({"a": [(b"k", b"1")], "b": [(b"k", b"2")]}, {"a": HERE, "b": HERE})
    state.drop_store("a")
    assert (rows(state, "a"), state.position("a"), rows(state, "b")) == ([], None, [(b"k", b"2")])
    state.write({"a": [(b"l", b"3")]}, {})
    assert store.get(b"l") == b"3"
    state.close()
    again = opened(path, memory)
    assert (rows(again, "a"), again.position("a")) == ([(b"l", b"3")], None)
    assert again.position("b") == HERE
    again.close()


def test_stores_that_are_gone_from_the_topology_are_kept(path: Path, memory: RocksMemory) -> None:
    state = opened(path, memory, "a", "old")
    state.write({"old": [(b"k", b"1")]}, {"old": HERE})
    state.close()
    opened(path, memory, "a", "new").close()
    again = opened(path, memory, "old")
    assert (rows(again, "old"), again.position("old")) == ([(b"k", b"1")], HERE)
    again.close()


def test_a_bulk_restore_ends_with_rows_and_positions(path: Path, memory: RocksMemory) -> None:
    state = opened(path, memory)
    state.begin_restore()
    state.restore({"a": [(b"k", b"1"), (b"k", b"2"), (b"gone", b"3"), (b"gone", None)]})
    assert state.position("a") is None
    state.end_restore({"a": HERE})
    state.write({"b": [(b"k", b"4")]}, {})
    state.close()
    again = opened(path, memory)
    assert (rows(again, "a"), again.position("a")) == ([(b"k", b"2")], HERE)
    assert rows(again, "b") == [(b"k", b"4")]
    again.close()


def memtables(path: Path) -> set[str]:
    """The kinds of memtables that a database was opened with last."""
    text = max(path.glob("OPTIONS-*")).read_text()
    return set(re.findall(r"memtable_factory=(?:\{id=)?(\w+)", text))


@pytest.mark.parametrize(
    ("step", "kinds"), [(607, {"SkipListFactory", "VectorRepFactory"}), (1, {"SkipListFactory"})]
)
def test_memtables_of_a_bulk_restore_whose_rows_are_in_no_order_are_gone_at_its_end(
    path: Path, state: RocksTaskState, step: int, kinds: set[str]
) -> None:
    keys = [b"%04d" % (n * step % 1000) for n in range(1000)]
    store = state.store("a")
    state.begin_restore()
    state.restore({"a": [(b"few", b"v")]})
    assert memtables(path) == {"SkipListFactory"}
    state.restore({"a": [(key, b"v") for key in keys]})
    assert memtables(path) == kinds
    state.restore({"a": [(b"last", b"v")]})
    state.end_restore({"a": HERE})
    assert memtables(path) == {"SkipListFactory"}
    assert [key for key, _ in store.scan()] == [*sorted(keys), b"few", b"last"]


def test_a_scan_that_has_not_ended_keeps_no_restore_from_going_on(state: RocksTaskState) -> None:
    state.write({"a": [(b"k", b"v"), (b"l", b"v")]}, {"a": HERE})
    scan = state.store("a").scan()
    next(scan)
    state.begin_restore()
    state.restore({"a": [(b"%d" % n, b"v") for n in reversed(range(1000, 2000))]})
    assert list(scan) == []
    state.end_restore({"a": HERE})
    assert state.store("a").get(b"l") == b"v"


def test_a_bulk_restore_begins_by_emptying_stores_without_a_position(
    state: RocksTaskState,
) -> None:
    state.write({"a": [(b"k", b"1")], "b": [(b"k", b"2")]}, {"b": HERE})
    state.begin_restore()
    assert (rows(state, "a"), rows(state, "b")) == ([], [(b"k", b"2")])


def test_writing_is_refused_while_a_bulk_restore_is_under_way(state: RocksTaskState) -> None:
    with pytest.raises(ValueError, match="call begin_restore first"):
        state.restore({})
    with pytest.raises(ValueError, match="call begin_restore first"):
        state.end_restore({})
    state.begin_restore()
    with pytest.raises(ValueError, match="end it"):
        state.write({}, {})
    state.end_restore({})
    state.write({}, {})


def test_a_restored_store_must_be_given_a_position(state: RocksTaskState) -> None:
    state.begin_restore()
    state.restore({"a": [(b"k", b"1")]})
    with pytest.raises(ValueError, match="'a'"):
        state.end_restore({"b": HERE})
    state.end_restore({"a": HERE})


def test_the_position_of_a_restore_comes_when_its_rows_are_durable(state: RocksTaskState) -> None:
    seen = []

    class Watched:
        def __init__(self, columns: Any) -> None:
            self._flush = columns.flush

        def flush(self, wait: bool) -> None:
            seen.append(state.position("a"))
            self._flush(wait)

    state._columns |= {name: Watched(columns) for name, columns in state._columns.items()}  # type: ignore[dict-item]
    state.begin_restore()
    state.restore({"a": [(b"k", b"v")]})
    state.end_restore({"a": Position("topic", 1, 1, 1)})
    assert seen == [None, None]
    assert state.position("a") == Position("topic", 1, 1, 1)


def test_a_write_that_failed_leaves_the_position_as_it_was(state: RocksTaskState) -> None:
    class Broken:
        def write(self, batch: Any) -> None:
            raise Exception("IO error: No space left on device")

    right, state._db = state._db, Broken()  # type: ignore[assignment]
    with pytest.raises(StateError, match=r"No space left on device; .*free space on the disk of"):
        state.write({"a": [(b"k", b"v")]}, {"a": HERE})
    state._db = right
    assert state.position("a") is None


def test_a_restore_that_was_given_up_may_begin_again(state: RocksTaskState) -> None:
    state.begin_restore()
    state.restore({"a": [(b"k", b"1")]})
    state.begin_restore()
    assert rows(state, "a") == []
    state.end_restore({})


@pytest.mark.slow
def test_restores_of_many_rows_end(path: Path, memory: RocksMemory) -> None:
    """A flush that meets another one on its way must not wait for ever."""
    some = random.Random(5)
    for attempt in range(8):
        state = opened(path.with_name(f"db{attempt}"), memory, "a")
        state.begin_restore()
        for _ in range(some.randrange(6, 16)):
            state.restore({"a": [(some.randbytes(12), b"v" * 40) for _ in range(10_000)]})
        state.end_restore({"a": HERE})
        state.close()


def test_files_of_an_unknown_format_are_refused_and_left_alone(
    path: Path, memory: RocksMemory
) -> None:
    filled(path, memory, count=1)
    db = Rdict(str(path))
    db[b"format"] = b"%d" % (FORMAT_VERSION + 1)
    db.close()
    del db
    with pytest.raises(StateFormatError, match=f"format {FORMAT_VERSION + 1}"):
        opened(path, memory)
    db = Rdict(str(path))
    assert db.get(b"format") == b"%d" % (FORMAT_VERSION + 1)
    db.close()


def test_a_database_of_somebody_else_is_refused(path: Path, memory: RocksMemory) -> None:
    db = Rdict(str(path), Options(raw_mode=True))
    db[b"theirs"] = b"1"
    db.close()
    del db
    with pytest.raises(StateFormatError, match="none"):
        opened(path, memory)


def test_a_position_that_does_not_decode_is_corruption(path: Path, memory: RocksMemory) -> None:
    filled(path, memory, count=1)
    db = Rdict(str(path))
    db[b"position/a"] = b"[1, 2"
    db.close()
    del db
    with pytest.raises(StoreCorruptedError, match="'a'"):
        opened(path, memory)


def test_a_state_that_is_open_already_is_locked(state: RocksTaskState, memory: RocksMemory) -> None:
    with pytest.raises(StateLockedError, match="the state is open in another process"):
        opened(state._path, memory)


def test_a_scan_over_a_broken_file_fails_instead_of_ending_early(
    path: Path, memory: RocksMemory
) -> None:
    filled(path, memory)
    break_tables(path)
    state = opened(path, memory)
    for reverse in (False, True):
        with pytest.raises(StoreCorruptedError):
            list(state.store("a").scan(reverse=reverse))
    state.close()


def test_reads_of_a_broken_file_tell_that_it_is_broken(path: Path, memory: RocksMemory) -> None:
    filled(path, memory)
    break_tables(path)
    state = opened(path, memory)
    keys = [b"%06d" % n for n in range(2_000)]
    with pytest.raises(StoreCorruptedError):
        [state.store("a").get(key) for key in keys]
    with pytest.raises(StoreCorruptedError):
        state.store("a").get_many(keys)
    state.close()


def test_a_broken_store_can_be_dropped(path: Path, memory: RocksMemory) -> None:
    filled(path, memory)
    break_tables(path)
    state = opened(path, memory)
    state.drop_store("a")
    assert (rows(state, "a"), state.position("a")) == ([], None)
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    state.close()
    again = opened(path, memory)
    assert rows(again, "a") == [(b"k", b"1")]
    again.close()


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_missing_files_are_corruption_or_an_empty_state(
    path: Path, memory: RocksMemory, pattern: str
) -> None:
    """Rows may be missing only together with the position."""
    filled(path, memory)
    for file in path.glob(pattern):
        file.unlink()
    try:
        state = opened(path, memory)
    except StoreCorruptedError:
        return
    assert (rows(state, "a"), state.position("a")) == ([], None)
    state.close()


def test_a_path_that_speaks_of_corruption_does_not_make_it_one(
    tmp_path: Path, memory: RocksMemory
) -> None:
    path = tmp_path / "Corruption: checksum"
    state = opened(path, memory)
    with pytest.raises(StateLockedError):
        opened(path, memory)
    state.close()


def test_a_file_of_the_binding_that_cannot_be_written_is_said() -> None:
    """It keeps one beside RocksDB's, which a disk for reading alone does not take."""
    with pytest.raises(StateError, match="Read-only file system"), converted_errors():
        raise OSError(30, "Read-only file system")
