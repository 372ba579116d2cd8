from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state.errors import UnknownStoreError
from headrace.state.rocks import RocksMemory
from headrace.state.spec import StoreSpec
from headrace.state.store import Position, TaskState
from headrace.state.task_state import open_task_state

HERE = Position("topic-a", 7, 3, 1_700_000_000_000)
DISK, RAM = StoreSpec("disk"), StoreSpec("ram", kind="memory")


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
