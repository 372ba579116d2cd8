"""A task's state in memory that moves to disk when it grows past a bound.

The disk is a RocksDB in a directory of the executor's own; nothing of it outlives the Spark task,
and where the worker is killed, Spark removes the directory with the executor's own files.
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
"""How many rows move in one batch."""
_ROW_BYTES = 150
"""What a row costs in memory besides its bytes."""
_BLOCK_CACHE_BYTES = 64 << 20
_WRITE_BUFFER_BYTES = 64 << 20


def spill_directory(number: int) -> str | None:
    """Return where a task's state may lie on disk: in the directories of Spark, where it says any.

    Spark tells its Python workers the directories of the executor's blocks, which are on the disks
    that `spark.local.dir` or the cluster manager gives it, and which it removes.

    Args:
        number: of the task; tasks take the directories in turn.

    Returns:
        The directory, or None outside of Spark.
    """
    directories = [path for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
    return directories[number % len(directories)] if directories else None


class _Store:
    """A store wherever it is now."""

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
    """A `TaskState` of a task that begins with nothing and is not restored.

    Args:
        memory_bytes: how much may be written before it moves to disk, roughly.
        directory: where the disk is; None takes the system's directory for temporary files.

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
        self._room_bytes = memory_bytes
        self._parent = directory
        self._directory: Path | None = None
        self.home: TaskState = MemoryTaskState(specs)
        """Where the rows are now."""
        self._stores = {spec.name: _Store(self.home.store(spec.name)) for spec in specs}

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows have moved."""
        return self._directory is not None

    def store(self, name: str) -> CommittedStore:
        """Return a store's rows; the handle stays valid when they move."""
        return self._stores[name]

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Apply all deltas and positions."""
        self.home.write(deltas, positions)
        if self.is_on_disk:
            return
        for delta in deltas.values():
            # Rows that are written again count again: a bound on time rather than on the rows.
            self._room_bytes -= sum(
                _ROW_BYTES + len(key) + (0 if row is None else len(row)) for key, row in delta
            )
        if self._room_bytes < 0:
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
        """Return the position of a store."""
        return self.home.position(store_name)

    def begin_restore(self) -> None:
        """Start a bulk restore."""
        self.home.begin_restore()

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Apply changelog records in their order."""
        self.home.restore(deltas)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Take the positions."""
        self.home.end_restore(positions)

    def drop_store(self, name: str) -> None:
        """Empty one store."""
        self.home.drop_store(name)

    def close(self) -> None:
        """Forget everything, and remove what is on disk."""
        self.home.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
