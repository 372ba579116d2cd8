"""Local state of a task in its directory, locked by this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.state.directory import (
    StateDirectory,
    TaskDirectory,
    is_out_of_files,
    open_files_advice,
)
from headrace.state.errors import DiskFullError, StateError, StoreCorruptedError
from headrace.state.rocks import RocksMemory
from headrace.state.store import TaskState
from headrace.state.task_state import open_task_state
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import STATE_REBUILT, LocalStateError
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.plan.plan import TaskId
from headrace.topology.processors.store import Store

PATIENCE_S = 2.0
"""Seconds to wait until another process releases a task's directory."""
_LOCKED_ADVICE = (
    "nothing is lost: another process of this host still locks the task's directory, so the rows "
    "are restored from the changelogs into a new directory. Stop that process if it hangs"
)


def rocks_memory(config: StreamsConfig) -> RocksMemory:
    return RocksMemory(
        block_cache_bytes=config.rocksdb_block_cache_bytes,
        write_buffer_bytes=config.rocksdb_write_buffer_bytes,
    )


@dataclass(slots=True)
class LocalHome:
    """A task's directory, locked, with its state open.

    See `headrace.streams.tasks.tasks.TaskHome`.
    """

    directory: TaskDirectory
    stores: Sequence[Store]
    memory: RocksMemory
    log: Log
    state: TaskState = field(init=False)
    is_open: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        try:
            self.state = self._open()
        except StoreCorruptedError as error:
            # The changelogs have every row of logged stores, so the files are not needed.
            self.log.warning(
                "state_rebuilt",
                path=str(self.directory.path),
                reason=str(error),
                advice=STATE_REBUILT,
            )
            self.directory.wipe()
            self.state = self._open()

    def _open(self) -> TaskState:
        specs = [store.spec for store in self.stores]
        return open_task_state(self.directory.path, specs, memory=self.memory)

    def wipe(self) -> None:
        self.state.close()
        self.directory.wipe()
        self.state = self._open()

    def close(self) -> None:
        self.is_open = False
        self.state.close()
        self.directory.release()


def open_global_home(
    directory: StateDirectory,
    instance_id: str,
    stores: Sequence[Store],
    memory: RocksMemory,
    log: Log,
) -> LocalHome:
    """Open the state of global tables; no other process must use the same `instance_id`."""
    try:
        return LocalHome(directory.acquire_global(instance_id), stores, memory, log)
    except DiskFullError:
        raise
    except StateError as error:
        raise LocalStateError(f"global tables: {error}") from error


class LocalHomes:
    """Opener of tasks' directories that does not block on locks of other workers of this host."""

    def __init__(
        self, directory: StateDirectory, memory: RocksMemory, *, clock: Clock, log: Log
    ) -> None:
        self._directory = directory
        self._memory = memory
        self._clock = clock
        self._log = log
        self._waits_since_s: dict[TaskId, float] = {}

    def open(self, task_id: TaskId, stores: Sequence[Store]) -> LocalHome | None:
        """Open a task's state, or return None while another process may still release it.

        After `PATIENCE_S`, the task gets a new directory and is restored from the changelogs.
        """
        try:
            directory = self._lock(task_id)
            if directory is None:
                return None
            try:
                return LocalHome(directory, stores, self._memory, self._log)
            except BaseException:
                directory.release()
                raise
        except DiskFullError:
            raise
        except StateError as error:
            raise LocalStateError(f"task {task_id}: {error}") from error
        except OSError as error:
            if not is_out_of_files(error):
                raise
            raise LocalStateError(f"task {task_id}: {error}; {open_files_advice()}") from error

    def _lock(self, task_id: TaskId) -> TaskDirectory | None:
        directory = self._directory.try_task(str(task_id))
        if directory is None:
            now_s = self._clock.monotonic_s()
            since_s = self._waits_since_s.setdefault(task_id, now_s)
            if now_s - since_s < PATIENCE_S:
                return None
            directory = self._directory.acquire_task(str(task_id), wait_ms=0)
            self._log.warning(
                "locked_state_ignored",
                task=str(task_id),
                generation=directory.generation,
                waited_s=PATIENCE_S,
                advice=_LOCKED_ADVICE,
            )
        self._waits_since_s.pop(task_id, None)
        return directory
