"""Directories of local state on a host, and the locks that protect them.

    <state.dir>/<application.id>/tasks/0_3/          RocksDB of task 0_3
    <state.dir>/<application.id>/tasks/0_3.lock      held by the worker that owns the task
    <state.dir>/<application.id>/tasks/0_3.g1/       a fresh generation, see `acquire_task`
    <state.dir>/<application.id>/global/<identity>   global tables of the worker with that identity
    <state.dir>/<application.id>/workers/slot-0      a worker's identity, locked while it runs

All workers of an application on a host share the directory. Locks are flock locks of the kernel:
they end with the process, however it ends. Child processes release their copies, at exec or right
after fork.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.state.errors import StateDirectoryError, StateLockedError
from headrace.state.log import get_logger

_log = get_logger()

MAX_SLOTS = 1_000
MAX_GENERATIONS = 100
_RETRY_S = 0.05
_TASK = re.compile(r"[0-9]+_[0-9]+(\.g[0-9]+)?")
_GENERATION = re.compile(r"\.g([0-9]+)$")
_HOST = re.compile(r"[0-9a-f]{8}")
_RENEWED = (
    "the file contains no worker identity, so this worker gets a new identity; nothing is lost: "
    "its tasks start when the session of the old identity has expired. Check the disk of state.dir"
)


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Lock:
    """Locked file that contains the process id of its holder."""

    path: Path
    _file: int

    @classmethod
    def take(cls, path: Path) -> _Lock | None:
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(file)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                raise
            if _is_at(file, path):
                break
            os.close(file)  # removed between the two calls: other processes would not see the lock
        lock = cls(path, file)
        _release_in_children(weakref.ref(lock))
        return lock

    def read(self) -> str:
        return os.pread(self._file, 4096, 0).decode(errors="replace")

    def write(self, text: str) -> None:
        # In this order, so that a kill between the two calls does not lose the random part.
        data = text.encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _release_in_children(lock: weakref.ref[_Lock]) -> None:
    # A child's copy of the file would hold the lock after this process has ended.
    def release() -> None:
        own_lock = lock()
        if own_lock is not None:
            own_lock.release()

    os.register_at_fork(after_in_child=release)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Rename first, because a subset of RocksDB's files could pass for complete state."""
    _remove_rest(path)
    with suppress(FileNotFoundError):
        path.rename(_trash(path))
    _remove_rest(path)


def _remove_rest(path: Path) -> None:
    if _trash(path).exists():
        shutil.rmtree(_trash(path))


def _trash(path: Path) -> Path:
    return path.with_name(f"{path.name}.trash")


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _state_paths(parent: Path) -> list[Path]:
    """Include directories of which only the lock exists."""
    names = {re.sub(r"\.(lock|trash)$", "", path.name) for path in parent.iterdir()}
    return [parent / name for name in sorted(names)]


def _holder(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class TaskDirectory:
    """Task directory, locked until `release`.

    Args:
        generation: 0, or higher if an older generation was locked by another process.
    """

    path: Path
    generation: int
    _lock: _Lock

    def wipe(self) -> None:
        """Empty the directory and keep the lock; the state in it must be closed."""
        self.remove()
        with _directory_errors(self.path):
            # A reader that opens files which were just removed creates their directory.
            self.path.mkdir(exist_ok=True)

    def remove(self) -> None:
        """Remove the directory and keep the lock; the state in it must be closed."""
        with _directory_errors(self.path):
            _remove(self.path)

    def release(self) -> None:
        self._lock.release()


def _host_in(text: str) -> str | None:
    """Return the random part of a slot's file; None if the file is new, truncated or damaged."""
    parts = text.split()
    return parts[0] if len(parts) >= 2 and _HOST.fullmatch(parts[0]) else None


def _locked_directory(path: Path, generation: int, lock: _Lock) -> TaskDirectory:
    try:
        with _directory_errors(path):
            lock.write(f"{os.getpid()}\n")
            _remove_rest(path)
            path.mkdir(exist_ok=True)
    except StateDirectoryError:
        lock.release()
        raise
    return TaskDirectory(path, generation, lock)


@dataclass(slots=True)
class WorkerIdentity:
    """Identity of a worker, reserved until `release`.

    Args:
        instance_id: The worker's id in the consumer group and in its transactional id.
    """

    instance_id: str
    _lock: _Lock

    def release(self) -> None:
        self._lock.release()


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """State directory of an application.

    Args:
        root: The setting ``state.dir``.
        application_id: Name of the directory below it.
        sleep: Function that waits, for tests.
        monotonic: Clock in seconds, for tests.

    Raises:
        StateDirectoryError: The directory cannot be created or written.
    """

    root: Path
    application_id: str
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _tasks: Path = field(init=False)
    _workers: Path = field(init=False)
    _global: Path = field(init=False)

    def __post_init__(self) -> None:
        base = self.root / self.application_id
        object.__setattr__(self, "_tasks", base / "tasks")
        object.__setattr__(self, "_workers", base / "workers")
        object.__setattr__(self, "_global", base / "global")
        for directory in (self._tasks, self._workers, self._global):
            with _directory_errors(directory):
                directory.mkdir(parents=True, exist_ok=True)
                if not os.access(directory, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, "not writable")

    def acquire_task(self, task_id: str, *, wait_ms: int) -> TaskDirectory:
        """Lock a task's newest generation, and remove older generations that no process holds.

        If its holder does not release it in time, because it hangs for example, a new generation is
        created and restored from the changelog. An older generation may be outdated without harm,
        because its position is older, too.
        """
        deadline = self.monotonic() + wait_ms / 1000
        while (acquired := self.try_task(task_id)) is None:
            if self.monotonic() >= deadline:
                return self._create_generation(task_id)
            self.sleep(_RETRY_S)
        return acquired

    def try_task(self, task_id: str) -> TaskDirectory | None:
        while True:
            generations = self._generations(task_id)
            acquired = self._try(task_id, generations[-1])
            if acquired is None:
                return None
            if self._generations(task_id)[-1] == acquired.generation:
                self._remove_older(task_id, generations[:-1])
                return acquired
            acquired.release()  # another worker has created a newer generation meanwhile

    def acquire_global(self, instance_id: str) -> TaskDirectory:
        path = self._global / instance_id
        lock = self._lock(_lock_of(path))
        if lock is None:
            holder = _holder(_lock_of(path))
            raise StateLockedError(
                f"the global tables of worker {instance_id} are in use by process {holder}. Stop "
                "that process",
                holder_pid=holder,
            )
        return _locked_directory(path, 0, lock)

    def claim_all(self) -> list[TaskDirectory]:
        """Lock all state, old generations included, without waiting; keep no lock on failure."""
        claimed: list[TaskDirectory] = []
        for path in (*self.task_paths(), *self.global_paths()):
            lock = self._lock(_lock_of(path))
            if lock is None:
                for acquired in claimed:
                    acquired.release()
                holder = _holder(_lock_of(path))
                kind = "task" if path.parent == self._tasks else "global state"
                raise StateLockedError(
                    f"{kind} {_GENERATION.sub('', path.name)} is locked in {path.parent} by "
                    f"process {holder}; stop the application's workers on this host",
                    holder_pid=holder,
                )
            generation = _GENERATION.search(path.name)
            claimed.append(TaskDirectory(path, int(generation[1]) if generation else 0, lock))
        return claimed

    def task_paths(self) -> list[Path]:
        """Include old generations."""
        return [path for path in _state_paths(self._tasks) if _TASK.fullmatch(path.name)]

    def global_paths(self) -> list[Path]:
        return _state_paths(self._global)

    def _create_generation(self, task_id: str) -> TaskDirectory:
        newest = self._generations(task_id)[-1]
        for generation in range(newest + 1, newest + MAX_GENERATIONS):
            acquired = self._try(task_id, generation)
            if acquired is not None:
                return acquired
        holder = _holder(_lock_of(self._path(task_id, newest)))
        raise StateLockedError(
            f"task {task_id} is locked in {self._tasks} by process {holder}, and older generations "
            "by other processes. Stop the processes that hang.",
            holder_pid=holder,
        )

    def acquire_identity(self, explicit: str | None = None) -> WorkerIdentity:
        """Reserve the given identity, or the first free slot of this host.

        A slot's file has a random part that is created once. So slots of two hosts never have the
        same identity, and a restarted worker gets its previous identity.
        """
        if explicit is not None:
            path = self._workers / f"id-{explicit}"
            lock = self._lock(path)
            if lock is None:
                holder = _holder(path)
                raise StateLockedError(
                    f"worker.id {explicit!r} is in use by process {holder} on this host; give each "
                    "worker its own, or stop that process",
                    holder_pid=holder,
                )
            lock.write(f"{os.getpid()}\n")
            return WorkerIdentity(explicit, lock)
        for slot in range(MAX_SLOTS):
            lock = self._lock(self._workers / f"slot-{slot}")
            if lock is None:
                continue
            host = _host_in(lock.read()) or self._new_host(lock)
            lock.write(f"{host} {os.getpid()}\n")
            return WorkerIdentity(f"{host}-{slot}", lock)
        raise StateLockedError(f"all {MAX_SLOTS} worker slots in {self._workers} are in use")

    def identities(self) -> list[str]:
        """Return the identities of this host's workers, whether or not they are running."""
        identities: list[str] = []
        for path in sorted(self._workers.iterdir()):
            kind, _, name = path.name.partition("-")
            parts = path.read_text(errors="replace").split()
            if kind == "id":
                identities.append(name)
            elif kind == "slot" and parts and _HOST.fullmatch(parts[0]):
                identities.append(f"{parts[0]}-{name}")
        return identities

    def _new_host(self, lock: _Lock) -> str:
        if lock.read():
            _log.warning("identity_renewed", path=str(lock.path), advice=_RENEWED)
        return secrets.token_hex(4)

    def _lock(self, path: Path) -> _Lock | None:
        with _directory_errors(path):
            return _Lock.take(path)

    def _path(self, task_id: str, generation: int) -> Path:
        return self._tasks / (task_id if generation == 0 else f"{task_id}.g{generation}")

    def _generations(self, task_id: str) -> list[int]:
        generations = {0}
        for path in self._tasks.glob(f"{task_id}.g*.lock"):
            number = path.name.removesuffix(".lock").removeprefix(f"{task_id}.g")
            if number.isdecimal():
                generations.add(int(number))
        return sorted(generations)

    def _try(self, task_id: str, generation: int) -> TaskDirectory | None:
        path = self._path(task_id, generation)
        lock = self._lock(_lock_of(path))
        if lock is None:
            return None
        return _locked_directory(path, generation, lock)

    def _remove_older(self, task_id: str, generations: list[int]) -> None:
        for generation in generations:
            path = self._path(task_id, generation)
            lock = self._lock(_lock_of(path))
            if lock is None:
                continue
            try:
                _remove(path)
                if generation > 0:
                    lock.path.unlink(missing_ok=True)
            except OSError as error:
                # It only takes space; the next owner tries again.
                _log.warning("stale_state_kept", path=str(path), reason=str(error))
            finally:
                lock.release()


def remove_local_state(root: Path, application_id: str) -> None:
    """Remove the tasks and global tables of an application, or raise StateLockedError.

    The identities of workers stay.
    """
    if not (root / application_id).is_dir():
        return
    claimed = StateDirectory(root, application_id).claim_all()
    try:
        for directory in claimed:
            directory.remove()
    finally:
        for directory in claimed:
            directory.release()


@contextmanager
def _directory_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateDirectoryError(
            f"{path} cannot be used: {error.strerror}; correct state.dir, or its permissions"
        ) from error


# Limit of open files of this process; RocksDB opens many files.


FILES_OF_TASK = 10
FILES_OF_STORE = 20
_MOST = 1 << 20
"""Soft limit to set if the hard limit is infinite, which macOS rejects as a soft limit."""


def raise_open_files() -> int:
    """Raise the soft limit to the hard limit; 100 tasks with stores use up the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft


def is_out_of_files(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def open_files_advice() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return (
        f"this process may open {soft:,} files (hard limit: {most}), and needs about "
        f"{FILES_OF_TASK} for each task with stores and up to {FILES_OF_STORE} for each store of "
        "it; nothing is lost. Raise the hard limit (ulimit -Hn 65536, LimitNOFILE=65536 in "
        "systemd, --ulimit nofile=65536 in Docker), or run more workers with fewer tasks each"
    )
