"""Disks of the hosts: durable state survives the crash of a process, other state does not.

A row written with the write-ahead log survives a crash; a row of a bulk restore survives only if it
was flushed, explicitly or by chance. Both kinds of disk behave like this: the disk in memory stores
durable rows separately from the rows that the process sees, and the disk of RocksDB continues with
a copy of the files from the moment of the crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

from headrace.state.errors import StateError, StoreCorruptedError
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore, Delta, Position, RangeDelta, TaskState
from headrace.streams.plan.plan import TaskId
from headrace.streams.simulation.world.faults import Faults, crash
from headrace.streams.simulation.world.kernel import SECOND
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.topology.processors.store import Store

LOCK_TIMEOUT_US = 2 * SECOND
"""Maximum time for the holder of a task's directory to release it."""


class TaskFiles(Protocol):
    """Directory of a task."""

    def open(self, specs: Sequence[StoreSpec]) -> TaskState:
        """Open the durable state."""

    def crashed(self) -> None:
        """Handle the crash of the process that has the files open: only durable state survives."""

    def wipe(self) -> None:
        """Remove everything, while the files are not open."""

    def copy(self) -> TaskFiles:
        """Return a copy."""


@dataclass(slots=True)
class MemoryFiles:
    """Durable rows and positions by store, in memory."""

    chance: Callable[[float], bool]
    rows: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    """The name on disk of each store, which differs for each format."""

    def open(self, specs: Sequence[StoreSpec]) -> TaskState:
        for spec in specs:
            if spec.kind == "memory":
                self.rows.pop(spec.name, None)
                self.positions.pop(spec.name, None)
            if self.formats.setdefault(spec.name, spec.disk_name) != spec.disk_name:
                # Rows in another format are restored here; RocksDB converts them.
                self.formats[spec.name] = spec.disk_name
                self.rows.pop(spec.name, None)
                self.positions.pop(spec.name, None)
        return _DurableState(self, specs)

    def crashed(self) -> None:
        """Do nothing, because only durable state is stored here."""

    def wipe(self) -> None:
        self.rows.clear()
        self.positions.clear()

    def copy(self) -> MemoryFiles:
        rows = {name: dict(own) for name, own in self.rows.items()}
        return MemoryFiles(self.chance, rows, dict(self.positions), dict(self.formats))


class _DurableState(MemoryTaskState):
    """State as the process sees it; `files` has the state that a crash would leave."""

    def __init__(self, files: MemoryFiles, specs: Sequence[StoreSpec]) -> None:
        super().__init__(specs)
        self._files = files
        self._unflushed: dict[str, dict[bytes, bytes | None]] = {}
        if files.positions or files.rows:
            names = {spec.name for spec in specs}
            rows = {n: list(own.items()) for n, own in files.rows.items() if n in names}
            positions = {n: p for n, p in files.positions.items() if n in names}
            super().write(rows, positions)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Write with the log, which is durable immediately."""
        super().write(deltas, positions)
        for name, delta in deltas.items():
            if isinstance(delta, RangeDelta):
                for rows in (self._files.rows.get(name, {}), self._unflushed.get(name, {})):
                    for key in [key for key in rows if delta.start <= key < delta.end]:
                        del rows[key]
            for key, value in delta:
                self._unflushed.get(name, {}).pop(key, None)
                self._keep(name, key, value)
        self._files.positions.update(positions)

    def begin_restore(self) -> None:
        super().begin_restore()
        for name in list(self._files.rows):
            if name not in self._files.positions:
                del self._files.rows[name]
                self._unflushed.pop(name, None)

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Write without the log, which is durable after a flush, explicit or by chance."""
        super().restore(deltas)
        for name, delta in deltas.items():
            self._unflushed.setdefault(name, {}).update(delta)
        if self._files.chance(0.1):
            self.flush()

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        self.flush()
        super().end_restore(positions)
        self._files.positions.update(positions)

    def drop_store(self, name: str) -> None:
        super().drop_store(name)
        self._files.positions.pop(name, None)
        self._files.rows.pop(name, None)
        self._unflushed.pop(name, None)

    def flush(self) -> None:
        for name, rows in self._unflushed.items():
            for key, value in rows.items():
                self._keep(name, key, value)
        self._unflushed.clear()

    def _keep(self, name: str, key: bytes, value: bytes | None) -> None:
        rows = self._files.rows.setdefault(name, {})
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


class RocksFiles:
    """RocksDB directory; a crash continues with a copy, because the process is not really dead."""

    def __init__(self, root: Path) -> None:
        from headrace.state.rocks import RocksMemory

        self._root = root
        self._number = 0
        self._memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=64 << 20)
        self._path = root / "0"
        self._open: TaskState | None = None
        self._dead: list[TaskState] = []

    def open(self, specs: Sequence[StoreSpec]) -> TaskState:
        from headrace.state.task_state import open_task_state

        self._open = open_task_state(self._path, specs, memory=self._memory)
        return self._open

    def crashed(self) -> None:
        if self._open is not None:
            # Closing it now would write its memory to its files.
            self._dead.append(self._open)
            self._open = None
            self._path = self._duplicate()

    def _duplicate(self) -> Path:
        self._number += 1
        path = self._root / str(self._number)
        if self._path.exists():
            shutil.copytree(self._path, path, ignore=shutil.ignore_patterns("LOCK"))
        return path

    def wipe(self) -> None:
        if self._path.exists():
            shutil.rmtree(self._path)

    def copy(self) -> RocksFiles:
        self._number += 1
        copied = RocksFiles(self._root / f"copy-{self._number}")
        if self._path.exists():
            shutil.copytree(self._path, copied._path, ignore=shutil.ignore_patterns("LOCK"))
        return copied

    def close(self) -> None:
        for state in self._dead:
            state.close()


@dataclass(slots=True, eq=False)
class _Directory:
    """Directory of a task in a generation, with the holder of its lock."""

    files: TaskFiles
    holder: SimulatedProcess | None = None
    broken: bool = False
    state: TaskState | None = None
    """The state that the holder has open."""

    @property
    def is_free(self) -> bool:
        return self.holder is None or not self.holder.alive


class Host:
    """Disk of a host, shared by the workers on it."""

    def __init__(self, make_files: Callable[[str], TaskFiles]) -> None:
        self._make_files = make_files
        self._directories: dict[TaskId, list[_Directory]] = {}
        self._waits: dict[tuple[str, TaskId], int] = {}
        self._older: dict[TaskId, TaskFiles] = {}
        self.full_until_us = 0
        """The time until which the disk is full."""

    def lock(self, process: SimulatedProcess, task_id: TaskId) -> _Directory | None:
        """Lock a task's newest free directory; None while its holder may still release it."""
        found = self._directories.setdefault(task_id, [])
        if not found:
            found.append(_Directory(self._make_files(f"{task_id}")))
        directory = found[-1]
        now_us = process.kernel.now_us
        if not directory.is_free and directory.holder is not process:
            since_us = self._waits.setdefault((process.name, task_id), now_us)
            if now_us - since_us < LOCK_TIMEOUT_US:
                return None
            process.note(f"passes by the directory of {task_id}")
            directory = _Directory(self._make_files(f"{task_id}.g{len(found)}"))
            found.append(directory)
        self._waits.pop((process.name, task_id), None)
        if directory.holder is not None and not directory.holder.alive:
            directory.files.crashed()
        directory.holder = process
        return directory

    def open_home(
        self, process: SimulatedProcess, faults: Faults, task_id: TaskId, stores: Sequence[Store]
    ) -> SimulatedHome | None:
        process.check()
        directory = self.lock(process, task_id)
        if directory is None:
            return None
        return SimulatedHome(self, directory, [store.spec for store in stores], process, faults)

    def process_ended(self, process: SimulatedProcess) -> None:
        for directory in chain.from_iterable(self._directories.values()):
            if directory.holder is process:
                directory.files.crashed()
                directory.holder = None

    def held(self) -> dict[TaskId, TaskState]:
        return {
            task_id: directory.state
            for task_id, found in sorted(self._directories.items())
            for directory in found
            if directory.state is not None and not directory.is_free
        }

    def close(self) -> None:
        for directory in chain.from_iterable(self._directories.values()):
            if isinstance(directory.files, RocksFiles):
                directory.files.close()

    def remember(self) -> None:
        """Copy all unlocked directories, for `lose` to restore later."""
        for task_id, found in self._directories.items():
            if found and found[-1].holder is None:
                self._older[task_id] = found[-1].files.copy()

    def lose(self, *, all_of_it: bool) -> str:
        """Delete unlocked directories, or replace them by older copies; return a description."""
        done = []
        for task_id, found in self._directories.items():
            if not found or found[-1].holder is not None:
                continue
            older = self._older.pop(task_id, None)
            if all_of_it or older is None:
                found[-1].files.wipe()
                done.append(f"{task_id} gone")
            else:
                found[-1].files = older
                done.append(f"{task_id} older")
        return ", ".join(done)


@dataclass(slots=True)
class SimulatedHome:
    """Locked directory of a task with its open state.

    See `headrace.streams.tasks.tasks.TaskHome`.
    """

    host: Host
    directory: _Directory
    specs: Sequence[StoreSpec]
    process: SimulatedProcess
    faults: Faults
    state: TaskState = field(init=False)

    def __post_init__(self) -> None:
        kind = self.faults.draw(self.process, "store.open")
        self.faults.strike(self.process, kind)
        if kind == "corrupted" or self.directory.broken:
            # As `headrace.streams.tasks.home.LocalHome` does with files that cannot be read.
            self.process.note("broken files are removed")
            self.directory.files.wipe()
            self.directory.broken = False
        self._open()
        if kind == "crash_after":
            raise crash(self.process)

    def _open(self) -> None:
        inner = self.directory.state = self.directory.files.open(self.specs)
        self.state = _FaultyState(inner, self.host, self.directory, self.process, self.faults)

    def wipe(self) -> None:
        self.process.check()
        self.state.close()
        self.directory.files.wipe()
        self.directory.broken = False
        self._open()

    def close(self) -> None:
        self.process.check()
        self.state.close()
        self.directory.holder = None
        self.directory.state = None


@dataclass(slots=True, eq=False)
class _FaultyState:
    """Local state whose calls fail, are delayed, or kill the process before or after the call."""

    inner: TaskState
    host: Host
    directory: _Directory
    process: SimulatedProcess
    faults: Faults
    is_open: bool = True

    def _call(self, name: str, effect: Callable[[], None], text: str = "") -> None:
        self.process.check()
        kind = self.faults.draw(self.process, name)
        self.faults.strike(self.process, kind)
        if kind == "corrupted":
            self.directory.broken = True
            raise StoreCorruptedError("simulated: the files cannot be read")
        if self.host.full_until_us > self.process.kernel.now_us:
            self.faults.hit(self.process, name, "full")
            raise StateError("RocksDB failed: IO error: No space left on device")
        effect()
        if text:
            self.process.note(f"{name}: {text}")
        if kind == "crash_after":
            raise crash(self.process)
        # A write takes time, in which other threads run.
        self.process.sleep(self.process.kernel.between(20, 200))

    def store(self, name: str) -> CommittedStore:
        return self.inner.store(name)

    def position(self, store_name: str) -> Position | None:
        return self.inner.position(store_name)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        text = ", ".join(f"{name}@{p.offset}" for name, p in positions.items())
        self._call("store.write", lambda: self.inner.write(deltas, positions), text)

    def begin_restore(self) -> None:
        self._call("store.begin_restore", self.inner.begin_restore, "bulk")

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        text = ", ".join(f"{name} {len(delta)} rows" for name, delta in deltas.items())
        self._call("store.restore", lambda: self.inner.restore(deltas), text)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        text = ", ".join(f"{name}@{p.offset}" for name, p in positions.items())
        self._call("store.end_restore", lambda: self.inner.end_restore(positions), text)

    def drop_store(self, name: str) -> None:
        self._call("store.drop", lambda: self.inner.drop_store(name), name)

    def close(self) -> None:
        self.process.check()
        if self.is_open:
            self.is_open = False
            self.inner.close()
