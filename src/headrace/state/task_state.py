"""State of a task: persistent stores on disk, other stores in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.state.memory import MemoryTaskState
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore, Delta, Position, TaskState

T = TypeVar("T")


def open_task_state(path: Path, specs: Sequence[StoreSpec], *, memory: RocksMemory) -> TaskState:
    """Open the state of a task; in-memory stores start empty and without a position."""
    persistent = [spec for spec in specs if spec.kind == "rocksdb"]
    volatile = [spec for spec in specs if spec.kind == "memory"]
    if not persistent:
        return MemoryTaskState(volatile)
    disk = RocksTaskState(path / "rocksdb", persistent, memory=memory)
    if not volatile:
        return disk
    return _DiskAndMemory(disk, MemoryTaskState(volatile), {spec.name for spec in volatile})


class _DiskAndMemory:
    """Task state that routes each store to disk or to memory; the disk is written first because it
    can fail.
    """

    def __init__(self, disk: TaskState, memory: TaskState, volatile: set[str]) -> None:
        self._disk = disk
        self._memory = memory
        self._volatile = volatile

    def _state_of(self, name: str) -> TaskState:
        return self._memory if name in self._volatile else self._disk

    def store(self, name: str) -> CommittedStore:
        return self._state_of(name).store(name)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        (disk, memory), (disk_at, memory_at) = self._split(deltas), self._split(positions)
        self._disk.write(disk, disk_at)
        self._memory.write(memory, memory_at)

    def position(self, store_name: str) -> Position | None:
        return self._state_of(store_name).position(store_name)

    def begin_restore(self) -> None:
        self._disk.begin_restore()
        self._memory.begin_restore()

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        disk, memory = self._split(deltas)
        self._disk.restore(disk)
        self._memory.restore(memory)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        disk, memory = self._split(positions)
        # End memory first: it fails only for a missing position, before the disk has changed.
        self._memory.end_restore(memory)
        self._disk.end_restore(disk)

    def drop_store(self, name: str) -> None:
        self._state_of(name).drop_store(name)

    def close(self) -> None:
        self._disk.close()
        self._memory.close()

    def _split(self, by_store: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        disk: dict[str, T] = {}
        memory: dict[str, T] = {}
        for name, value in by_store.items():
            (memory if name in self._volatile else disk)[name] = value
        return disk, memory
