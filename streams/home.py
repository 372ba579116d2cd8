"""A task's local state in its directory, behind the lock of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from state.directory import TaskDirectory
from state.errors import StoreCorruptedError
from state.rocks import RocksMemory
from state.store import TaskState
from state.task_state import open_task_state
from streams.clients import Log
from topology.graph import Store


@dataclass(slots=True)
class LocalHome:
    """A task's directory, locked, with its state open (see `streams.tasks.TaskHome`)."""

    directory: TaskDirectory
    stores: Sequence[Store]
    memory: RocksMemory
    log: Log
    state: TaskState = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.state = self._open()
        except StoreCorruptedError as error:
            # The changelogs have every row of logged stores; the files are worth nothing.
            self.log.warning("state_rebuilt", path=str(self.directory.path), reason=str(error))
            self.directory.wipe()
            self.state = self._open()

    def _open(self) -> TaskState:
        specs = [store.spec for store in self.stores]
        return open_task_state(self.directory.path, specs, memory=self.memory)

    def wipe(self) -> None:
        """Empty the local state, keeping the lock."""
        self.state.close()
        self.directory.wipe()
        self.state = self._open()

    def close(self) -> None:
        """Close the state and let go of the lock."""
        self.state.close()
        self.directory.release()
