"""The hosts' disks: what survives the death of a process, and what does not.

A row that was written with the log is there after a crash; one of a bulk restore is there only if
it was flushed, or happened to be. Both kinds of disk keep to that: the one in memory by keeping
what is durable apart from what the process sees, the one of RocksDB by going on with a copy of the
files as they were at the moment of the crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.state.errors import StateError, StoreCorruptedError
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore, Delta, Position, TaskState
from headrace.streams.plan.plan import TaskId
from headrace.streams.simulation.world.faults import Faults
from headrace.streams.simulation.world.kernel import SECOND
from headrace.streams.simulation.world.process import Process
from headrace.streams.tasks.task_home import TaskHome
from headrace.topology.processors.store import Store

PATIENCE_US = 2 * SECOND
"""How long the holder of a task's directory may take to let go."""


class Files(Protocol):
    """A task's directory."""

    def open(self, specs: Sequence[StoreSpec]) -> TaskState:
        """Open what is durable."""

    def crashed(self) -> None:
        """The process that has them open is dead; what is not durable is gone."""

    def wipe(self) -> None:
        """Remove everything; nobody has them open."""

    def copy(self) -> Files:
        """Return the same, as of now."""


@dataclass(slots=True)
class MemoryFiles:
    """Rows and positions that are durable, by store."""

    chance: Callable[[float], bool]
    rows: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)

    def open(self, specs: Sequence[StoreSpec]) -> TaskState:
        """Open what is durable; stores in memory begin empty."""
        for spec in specs:
            if spec.kind == "memory":
                self.rows.pop(spec.name, None)
                self.positions.pop(spec.name, None)
        return _DurableState(self, specs)

    def crashed(self) -> None:
        """Nothing: what is here is what was durable."""

    def wipe(self) -> None:
        """Remove everything."""
        self.rows.clear()
        self.positions.clear()

    def copy(self) -> MemoryFiles:
        """Return the same, as of now."""
        rows = {name: dict(own) for name, own in self.rows.items()}
        return MemoryFiles(self.chance, rows, dict(self.positions))


class _DurableState(MemoryTaskState):
    """What the process sees, and beside it in `files` what a crash would leave."""

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
        """Write with the log: durable at once."""
        super().write(deltas, positions)
        for name, delta in deltas.items():
            for key, value in delta:
                self._unflushed.get(name, {}).pop(key, None)
                self._keep(name, key, value)
        self._files.positions.update(positions)

    def begin_restore(self) -> None:
        """Stores without a position are emptied for good."""
        super().begin_restore()
        for name in list(self._files.rows):
            if name not in self._files.positions:
                del self._files.rows[name]
                self._unflushed.pop(name, None)

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Write without the log: durable when it is flushed, or if memory runs out before."""
        super().restore(deltas)
        for name, delta in deltas.items():
            self._unflushed.setdefault(name, {}).update(delta)
        if self._files.chance(0.1):
            self.flush()

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Flush, and only then write the positions."""
        self.flush()
        super().end_restore(positions)
        self._files.positions.update(positions)

    def drop_store(self, name: str) -> None:
        """Forget the position, then the rows."""
        super().drop_store(name)
        self._files.positions.pop(name, None)
        self._files.rows.pop(name, None)
        self._unflushed.pop(name, None)

    def flush(self) -> None:
        """Make durable what was written without the log."""
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
    """A directory of RocksDB. A crash goes on with a copy, as the process is not really dead."""

    def __init__(self, root: Path) -> None:
        from headrace.state.rocks import RocksMemory

        self._root = root
        self._number = 0
        self._memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=64 << 20)
        self._path = root / "0"
        self._open: TaskState | None = None
        self._dead: list[TaskState] = []

    def open(self, specs: Sequence[StoreSpec]) -> TaskState:
        """Open the files."""
        from headrace.state.task_state import open_task_state

        self._open = open_task_state(self._path, specs, memory=self._memory)
        return self._open

    def crashed(self) -> None:
        """Go on with a copy of what the operating system has."""
        if self._open is not None:
            # Its memory would be written to its files if it were closed now.
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
        """Remove everything."""
        if self._path.exists():
            shutil.rmtree(self._path)

    def copy(self) -> RocksFiles:
        """Return the same, as of now."""
        self._number += 1
        copied = RocksFiles(self._root / f"copy-{self._number}")
        if self._path.exists():
            shutil.copytree(self._path, copied._path, ignore=shutil.ignore_patterns("LOCK"))
        return copied

    def close(self) -> None:
        """Close what dead processes had open."""
        for state in self._dead:
            state.close()


@dataclass(slots=True, eq=False)
class _Directory:
    """A task's directory of one generation, and who has its lock."""

    files: Files
    holder: Process | None = None
    broken: bool = False
    state: TaskState | None = None
    """What the holder has open."""

    @property
    def is_free(self) -> bool:
        return self.holder is None or not self.holder.alive


class Host:
    """The disk of one host, shared by the workers on it."""

    def __init__(self, make_files: Callable[[str], Files]) -> None:
        self._make_files = make_files
        self._directories: dict[TaskId, list[_Directory]] = {}
        self._waits: dict[tuple[str, TaskId], int] = {}
        self._older: dict[TaskId, Files] = {}
        self.full_until_us = 0
        """Until when nothing can be written."""

    def lock(self, process: Process, task_id: TaskId) -> _Directory | None:
        """Take a task's newest free directory, or None while its holder may still let go."""
        found = self._directories.setdefault(task_id, [])
        if not found:
            found.append(_Directory(self._make_files(f"{task_id}")))
        directory = found[-1]
        now_us = process.kernel.now_us
        if not directory.is_free and directory.holder is not process:
            since_us = self._waits.setdefault((process.name, task_id), now_us)
            if now_us - since_us < PATIENCE_US:
                return None
            process.note(f"passes by the directory of {task_id}")
            directory = _Directory(self._make_files(f"{task_id}.g{len(found)}"))
            found.append(directory)
        self._waits.pop((process.name, task_id), None)
        if directory.holder is not None and not directory.holder.alive:
            directory.files.crashed()
        directory.holder = process
        return directory

    def process_ended(self, process: Process) -> None:
        """The process is gone: what it had open is as its death left it."""
        for found in self._directories.values():
            for directory in found:
                if directory.holder is process:
                    directory.files.crashed()
                    directory.holder = None

    def held(self) -> dict[TaskId, TaskState]:
        """The states that live processes have open."""
        return {
            task_id: directory.state
            for task_id, found in sorted(self._directories.items())
            for directory in found
            if directory.state is not None and not directory.is_free
        }

    def close(self) -> None:
        """Close what dead processes have left open."""
        for found in self._directories.values():
            for directory in found:
                if isinstance(directory.files, RocksFiles):
                    directory.files.close()

    def remember(self) -> None:
        """Take a copy of everything that nobody has open, to come back as an old one."""
        for task_id, found in self._directories.items():
            if found and found[-1].holder is None:
                self._older[task_id] = found[-1].files.copy()

    def lose(self, *, all_of_it: bool) -> str:
        """Lose what nobody has open, or find older copies in its place; says what was done."""
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
    """A task's directory, locked, with its state open.

    See `headrace.streams.tasks.task_home.TaskHome`.
    """

    host: Host
    directory: _Directory
    specs: Sequence[StoreSpec]
    process: Process
    faults: Faults
    state: TaskState = field(init=False)

    def __post_init__(self) -> None:
        kind = self.faults.draw(self.process, "store.open")
        _strike(self.faults, self.process, kind)
        if kind == "corrupted" or self.directory.broken:
            # As `headrace.streams.tasks.home.LocalHome` does with files that cannot be read.
            self.process.note("broken files are removed")
            self.directory.files.wipe()
            self.directory.broken = False
        self._open()
        if kind == "crash_after":
            _die(self.process)

    def _open(self) -> None:
        inner = self.directory.state = self.directory.files.open(self.specs)
        self.state = _FaultyState(
            inner, self.process, self.faults, self._break, lambda: self.host.full_until_us
        )

    def _break(self) -> None:
        self.directory.broken = True

    def wipe(self) -> None:
        """Empty the local state, keeping the lock."""
        self.process.check()
        self.state.close()
        self.directory.files.wipe()
        self.directory.broken = False
        self._open()

    def close(self) -> None:
        """Close the state and let go of the lock."""
        self.process.check()
        self.state.close()
        self.directory.holder = None
        self.directory.state = None


def open_homes(
    host: Host, process: Process, faults: Faults
) -> Callable[[TaskId, Sequence[Store]], TaskHome | None]:
    """Return what opens tasks' directories for a process."""

    def open_home(task_id: TaskId, stores: Sequence[Store]) -> TaskHome | None:
        process.check()
        directory = host.lock(process, task_id)
        if directory is None:
            return None
        return SimulatedHome(host, directory, [store.spec for store in stores], process, faults)

    return open_home


def _die(process: Process) -> None:
    process.die()
    process.check()


def _strike(faults: Faults, process: Process, kind: str | None) -> None:
    if kind == "crash_before":
        _die(process)
    if kind == "stall":
        process.stand(faults.stall_us())
        process.settle()


class _FaultyState:
    """Local state whose calls can fail, be killed before or after, or be left standing."""

    def __init__(
        self,
        inner: TaskState,
        process: Process,
        faults: Faults,
        on_broken: Callable[[], None],
        full_until_us: Callable[[], int],
    ) -> None:
        self._inner = inner
        self._full_until_us = full_until_us
        self._process = process
        self._faults = faults
        self._on_broken = on_broken
        self._is_open = True

    def _call(self, name: str, effect: Callable[[], None], words: str = "") -> None:
        self._process.check()
        kind = self._faults.draw(self._process, name)
        _strike(self._faults, self._process, kind)
        if kind == "corrupted":
            self._on_broken()
            raise StoreCorruptedError("simulated: the files cannot be read")
        if self._full_until_us() > self._process.kernel.now_us:
            self._faults.hit(self._process, name, "full")
            raise StateError("RocksDB failed: IO error: No space left on device")
        effect()
        if words:
            self._process.note(f"{name}: {words}")
        if kind == "crash_after":
            _die(self._process)
        # Writing takes time, and lets others go on.
        self._process.sleep(self._process.kernel.between(20, 200))

    def store(self, name: str) -> CommittedStore:
        return self._inner.store(name)

    def position(self, store_name: str) -> Position | None:
        return self._inner.position(store_name)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        words = ", ".join(f"{name}@{p.offset}" for name, p in positions.items())
        self._call("store.write", lambda: self._inner.write(deltas, positions), words)

    def begin_restore(self) -> None:
        self._call("store.begin_restore", self._inner.begin_restore, "bulk")

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        words = ", ".join(f"{name} {len(delta)} rows" for name, delta in deltas.items())
        self._call("store.restore", lambda: self._inner.restore(deltas), words)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        words = ", ".join(f"{name}@{p.offset}" for name, p in positions.items())
        self._call("store.end_restore", lambda: self._inner.end_restore(positions), words)

    def drop_store(self, name: str) -> None:
        self._call("store.drop", lambda: self._inner.drop_store(name), name)

    def close(self) -> None:
        self._process.check()
        if self._is_open:
            self._is_open = False
            self._inner.close()
