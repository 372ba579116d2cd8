"""A worker's own on its host: its identity, and where its tasks' state lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.state.directory import Identity, StateDirectory
from headrace.state.disk.open_files import raise_open_files
from headrace.state.disk.options import RocksMemory
from headrace.state.errors import StateError, StateLockedError
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import IdentityError, LocalStateError
from headrace.streams.local.home import LocalHomes, open_global_home
from headrace.streams.local.task_home import TaskHome
from headrace.streams.seams.clients import Clock, Log
from headrace.streams.tasks.slot import OpenHome
from headrace.topology.processors.store import Store


class LocalState(Protocol):
    """What is a worker's own on its host: its identity, and where its tasks' state lives."""

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return what opens a task's local state."""

    def global_home(self, stores: Sequence[Store], log: Log) -> TaskHome:
        """Open the local state of this worker's global tables."""

    def close(self) -> None:
        """Let go of the identity."""


class HostState:
    """Identity and state in the settings' state.dir (see `LocalState`).

    Raises:
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
    """

    def __init__(self, config: StreamsConfig) -> None:
        raise_open_files()
        self._directory, self._identity = _local_identity(config)
        self._config = config
        self._memory = _rocks_memory(config)

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""
        return self._identity.instance_id

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return what opens a task's local state."""
        return LocalHomes(self._directory, self._memory, clock=clock, log=log).open

    def global_home(self, stores: Sequence[Store], log: Log) -> TaskHome:
        """Open the local state of this worker's global tables."""
        return open_global_home(self._directory, self.instance_id, stores, self._memory, log)

    def close(self) -> None:
        """Let go of the identity."""
        self._identity.release()


def _local_identity(config: StreamsConfig) -> tuple[StateDirectory, Identity]:
    try:
        directory = StateDirectory(config.state_dir, config.application_id)
        return directory, directory.acquire_identity(config.worker_id)
    except StateLockedError as error:
        raise IdentityError(str(error)) from error
    except StateError as error:
        raise LocalStateError(str(error)) from error


def _rocks_memory(config: StreamsConfig) -> RocksMemory:
    return RocksMemory(
        block_cache_bytes=config.rocksdb_block_cache_bytes,
        write_buffer_bytes=config.rocksdb_write_buffer_bytes,
    )
