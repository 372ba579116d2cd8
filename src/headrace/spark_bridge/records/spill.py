"""State of a task in memory that moves to disk when it exceeds a limit.

On disk it is a RocksDB in a directory of the executor, which is removed at the end of the Spark
task. If the worker is killed, Spark removes the directory with the executor's other files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore, Delta, Position, TaskState

_MOVED_ROWS = 20_000
"""Number of rows that move to disk in one batch."""
_ROW_BYTES = 150
"""Memory overhead of a row."""
_BLOCK_CACHE_BYTES = 64 << 20
_WRITE_BUFFER_BYTES = 64 << 20


def spill_directory(number: int) -> str | None:
    """Return a local directory of Spark for a task's state on disk, or None outside of Spark.

    Spark passes its Python workers the block directories of the executor, which are on the disks
    of `spark.local.dir` or of the cluster manager, and removes them.
    """
    directories = [path for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
    return directories[number % len(directories)] if directories else None


class _Store:
    """Handle of a store that stays valid when the rows move."""

    __slots__ = ("home",)

    def __init__(self, home: CommittedStore) -> None:
        self.home = home

    def get(self, key: bytes) -> bytes | None:
        return self.home.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.home.get_many(keys)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self.home.scan(start, end, reverse=reverse)

    def approximate_count(self) -> int:
        return self.home.approximate_count()

    def approximate_bytes(self) -> int:
        return self.home.approximate_bytes()


class SpillingState:
    """`TaskState` of a task that starts empty and is not restored.

    Args:
        memory_bytes: approximate bytes that may be written before the state moves to disk.
        directory: parent of the directory on disk; None uses the system's temporary directory.

    >>> state = SpillingState([StoreSpec("counts")], memory_bytes=0)
    >>> counts = state.store("counts")
    >>> state.write({"counts": [(b"a", b"1")]}, {})
    >>> state.is_on_disk, counts.get(b"a")
    (True, b'1')
    >>> state.close()
    """

    def __init__(
        self, specs: Sequence[StoreSpec], *, memory_bytes: int, directory: str | None = None
    ) -> None:
        self._specs = list(specs)
        self._free_bytes = memory_bytes
        self._parent = directory
        self._directory: Path | None = None
        self.home: TaskState = MemoryTaskState(specs)
        """The current state: in memory, or on disk."""
        self._stores = {spec.name: _Store(self.home.store(spec.name)) for spec in specs}

    @property
    def is_on_disk(self) -> bool:
        return self._directory is not None

    def store(self, name: str) -> CommittedStore:
        return self._stores[name]

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        self.home.write(deltas, positions)
        if self.is_on_disk:
            return
        for delta in deltas.values():
            # Overwritten rows count again: the limit is on written bytes, not on the state's size.
            self._free_bytes -= sum(
                _ROW_BYTES + len(key) + (0 if row is None else len(row)) for key, row in delta
            )
        if self._free_bytes < 0:
            self._move()

    def _move(self) -> None:
        from headrace.state.rocks import RocksMemory, RocksTaskState

        self._directory = Path(tempfile.mkdtemp(prefix="headrace-", dir=self._parent))
        shared = RocksMemory(
            block_cache_bytes=_BLOCK_CACHE_BYTES, write_buffer_bytes=_WRITE_BUFFER_BYTES
        )
        disk = RocksTaskState(self._directory, self._specs, memory=shared)
        disk.begin_restore()
        for spec in self._specs:
            rows = self.home.store(spec.name).scan()
            while batch := list(islice(rows, _MOVED_ROWS)):
                disk.restore({spec.name: batch})
        disk.end_restore({spec.name: Position("", 0, 0, 0) for spec in self._specs})
        self.home.close()
        self.home = disk
        for name, store in self._stores.items():
            store.home = disk.store(name)

    def position(self, store_name: str) -> Position | None:
        return self.home.position(store_name)

    def begin_restore(self) -> None:
        self.home.begin_restore()

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        self.home.restore(deltas)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        self.home.end_restore(positions)

    def drop_store(self, name: str) -> None:
        self.home.drop_store(name)

    def close(self) -> None:
        self.home.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
