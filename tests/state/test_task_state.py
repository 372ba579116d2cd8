from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state.codec import TIMESTAMP
from headrace.state.counting import COUNTED_ROWS, count_rows
from headrace.state.errors import UnknownStoreError
from headrace.state.layout import LayoutName
from headrace.state.rocks import RocksMemory
from headrace.state.spec import StoreKind, StoreSpec
from headrace.state.store import Position, TaskState
from headrace.state.task_state import open_task_state

HERE = Position("topic-a", 7, 3, 1_700_000_000_000)
DISK, RAM = StoreSpec("disk"), StoreSpec("ram", kind="memory")


@pytest.fixture
def memory() -> RocksMemory:
    return RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)


def opened(path: Path, *specs: StoreSpec) -> TaskState:
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
    return open_task_state(path, specs, memory=memory)


def test_in_memory_stores_begin_empty_and_without_a_position(tmp_path: Path) -> None:
    state = opened(tmp_path, DISK, RAM)
    state.write({"disk": [(b"k", b"1")], "ram": [(b"k", b"2")]}, {"disk": HERE, "ram": HERE})
    assert (state.position("disk"), state.position("ram")) == (HERE, HERE)
    state.close()
    again = opened(tmp_path, DISK, RAM)
    assert (again.position("disk"), again.position("ram")) == (HERE, None)
    assert list(again.store("disk").scan()) == [(b"k", b"1")]
    assert list(again.store("ram").scan()) == []
    again.close()


def test_a_task_of_in_memory_stores_alone_writes_no_file(tmp_path: Path) -> None:
    state = opened(tmp_path, RAM)
    state.write({"ram": [(b"k", b"1")]}, {"ram": HERE})
    state.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("specs", [[DISK], [RAM], [DISK, RAM]])
def test_an_unknown_store_is_named_and_nothing_is_written(
    tmp_path: Path, specs: list[StoreSpec]
) -> None:
    state = opened(tmp_path, *specs)
    name = specs[-1].name
    with pytest.raises(UnknownStoreError, match="nope"):
        state.write({name: [(b"k", b"1")], "nope": []}, {})
    assert list(state.store(name).scan()) == []
    with pytest.raises(UnknownStoreError, match="nope"):
        state.store("nope")
    state.close()


def test_a_restored_in_memory_store_needs_a_position_before_the_disk_is_done(
    tmp_path: Path,
) -> None:
    """Otherwise the disk would be past its restore and the memory still within."""
    state = opened(tmp_path, DISK, RAM)
    state.begin_restore()
    state.restore({"disk": [(b"k", b"1")], "ram": [(b"k", b"2")]})
    with pytest.raises(ValueError, match="'ram'"):
        state.end_restore({"disk": HERE})
    state.end_restore({"disk": HERE, "ram": HERE})
    state.write({"disk": [(b"l", b"1")]}, {})
    state.close()


def timed_key(layout: str, number: int) -> bytes:
    """A key of a row as commits write it: of a window or a session it ends in times."""
    times = {"window": TIMESTAMP.pack(number) + bytes(4), "session": 2 * TIMESTAMP.pack(number)}
    return b"k%05d" % (number % 50) + times.get(layout, b"")


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
@pytest.mark.parametrize("name", ["plain", "window", "session"])
def test_few_rows_are_counted_however_often_they_were_written(
    tmp_path: Path, memory: RocksMemory, name: LayoutName, kind: StoreKind
) -> None:
    """RocksDB's own estimate counts each change, those of indexes too, and deleted rows."""
    spec = StoreSpec("s", kind=kind, layout=name)
    state = open_task_state(tmp_path, [spec], memory=memory)
    expected = dict.fromkeys(timed_key(name, number) for number in range(50))
    for _ in range(100):
        state.write({"s": spec.rows.rows([(key, b"row", 7) for key in expected])}, {})
    for _ in range(10):
        gone = [timed_key(name, number)[:6] + b"-" + timed_key(name, number) for number in range(9)]
        state.write({"s": spec.rows.rows([(key, b"row", 7) for key in gone])}, {})
        state.write({"s": spec.rows.rows([(key, None, 7) for key in gone])}, {})
    assert count_rows(state.store("s"), spec.rows, lambda: False) == (50, True)
    state.close()


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
def test_of_versions_the_last_ones_are_counted(
    tmp_path: Path, memory: RocksMemory, kind: StoreKind
) -> None:
    spec = StoreSpec("s", kind=kind, layout="versioned")
    state = open_task_state(tmp_path, [spec], memory=memory)
    changes = [(b"k%d" % (n % 7), None if n % 7 == 6 else b"v", n) for n in range(700)]
    state.write({"s": spec.rows.rows(changes)}, {})
    assert count_rows(state.store("s"), spec.rows, lambda: False) == (6, True)
    state.close()


def test_what_takes_too_long_to_count_is_estimated(
    tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = StoreSpec("s", kind="rocksdb")
    state = open_task_state(tmp_path, [spec], memory=memory)
    rows = [(b"k%05d" % number, b"v") for number in range(COUNTED_ROWS)]
    state.write({"s": rows}, {})

    def counted(*, is_late: bool = False) -> tuple[int, bool]:
        return count_rows(state.store("s"), spec.rows, lambda: is_late)

    assert counted() == (COUNTED_ROWS, True)
    assert not counted(is_late=True)[1]
    state.write({"s": [(b"more", b"v")]}, {})
    assert counted() == (COUNTED_ROWS + 1, False)
    state.write({"s": [(key, None) for key, _ in rows]}, {})
    assert counted() == (1, True)
    monkeypatch.setattr("headrace.state.counting._SKIPPED_MAX", 100)
    assert not counted()[1]
    state.close()
