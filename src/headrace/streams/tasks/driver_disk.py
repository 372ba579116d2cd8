"""Disk of the test driver: local state that survives its worker."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.state.memory import MemoryTaskState
from headrace.state.store import TaskState
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import Log
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.tasks import TaskHome
from headrace.topology.processors.store import Store

if TYPE_CHECKING:
    from headrace.streams.tasks.home import LocalHome


class Disk(Protocol):
    """Storage of local state that survives its worker."""

    def open(self, task_id: TaskId, stores: Sequence[Store]) -> TaskHome:
        """Open a task's state, or return it if it is already open."""

    def open_global(self, stores: Sequence[Store]) -> TaskHome:
        """Open the state of global tables, or return it if it is already open."""

    def process_ended(self) -> None:
        """Close open state after the worker has ended; stores of kind "memory" are lost."""

    def lose(self) -> None:
        """Delete all state."""


@dataclass(slots=True)
class _MemoryHome:
    state: TaskState
    memory: MemoryTaskState
    """Same object as `state`, because the protocol's attribute cannot have a narrower type."""
    stores: Sequence[Store]

    def wipe(self) -> None:
        self.memory.cancel_restore()
        for store in self.stores:
            self.state.drop_store(store.name)

    def close(self) -> None:
        """Keep the rows, which survive the worker."""


class MemoryDisk:
    """Disk that keeps each task's state as an object."""

    def __init__(self) -> None:
        self._homes: dict[TaskId | None, _MemoryHome] = {}
        """By task; the global tables have the key None."""

    def open(self, task_id: TaskId, stores: Sequence[Store]) -> TaskHome:
        return self._open(task_id, stores)

    def open_global(self, stores: Sequence[Store]) -> TaskHome:
        return self._open(None, stores)

    def _open(self, task_id: TaskId | None, stores: Sequence[Store]) -> TaskHome:
        if task_id not in self._homes:
            state = MemoryTaskState([store.spec for store in stores])
            self._homes[task_id] = _MemoryHome(state, state, stores)
        return self._homes[task_id]

    def process_ended(self) -> None:
        for home in self._homes.values():
            home.memory.cancel_restore()  # the object outlives the worker that restored it
            for store in home.stores:
                if store.spec.kind == "memory":
                    home.state.drop_store(store.name)

    def lose(self) -> None:
        self._homes.clear()


class RocksDisk:
    """Disk that keeps each task's state in RocksDB, as the live runtime does."""

    def __init__(self, directory: Path, config: StreamsConfig, log: Log) -> None:
        # Import RocksDB only if it is used.
        from headrace.state.directory import StateDirectory
        from headrace.streams.tasks.home import rocks_memory

        self._make_directory = partial(StateDirectory, directory, config.application_id)
        self._directory = self._make_directory()
        self._files = directory / config.application_id
        self._log = log
        self._memory = rocks_memory(config)
        self._homes: dict[TaskId | None, LocalHome] = {}
        """By task; the global tables have the key None."""

    def open(self, task_id: TaskId, stores: Sequence[Store]) -> TaskHome:
        from headrace.streams.tasks.home import LocalHome

        home = self._homes.get(task_id)
        if home is None or not home.is_open:
            directory = self._directory.acquire_task(str(task_id), wait_ms=0)
            home = LocalHome(directory, stores, self._memory, self._log)
            self._homes[task_id] = home
        return home

    def open_global(self, stores: Sequence[Store]) -> TaskHome:
        from headrace.streams.tasks.home import open_global_home

        home = self._homes.get(None)
        if home is None or not home.is_open:
            home = open_global_home(self._directory, "driver", stores, self._memory, self._log)
            self._homes[None] = home
        return home

    def process_ended(self) -> None:
        for home in self._homes.values():
            if home.is_open:
                home.close()

    def lose(self) -> None:
        shutil.rmtree(self._files)
        self._directory = self._make_directory()
