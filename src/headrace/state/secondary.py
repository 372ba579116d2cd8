"""Read-only view of a task's state from another process: a RocksDB secondary that follows the
writer.

It shows whole commits only, up to the last call of `follow`, and does not change the files. Files
that RocksDB deletes meanwhile stay open, so reads continue after the writer is gone; their disk
space is freed by the next `follow` or `close`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rocksdict import AccessType, DbClosedError, Rdict

from headrace.state.errors import StateError, StoreCorruptedError, UnknownStoreError
from headrace.state.file_list import (
    OpenFileList,
    current_file_list,
    open_file_list,
    require_readable,
)
from headrace.state.layout import read_layout
from headrace.state.rocks import (
    RocksMemory,
    RocksStore,
    converted_errors,
    family_of,
    is_restoring,
    read_position,
    row_options,
    stored_file_list,
)
from headrace.state.store import Position

# Paths of tasks' files on this host, for readers: no files are created or locked.


_TASK = re.compile(r"(?P<task>[0-9]+_[0-9]+)(\.g(?P<generation>[0-9]+))?")
ROCKSDB = "rocksdb"
LOCKS = Path("/proc/locks")
"""The kernel's list of file locks; trying a lock instead could lock out a worker."""


def task_files(base: Path) -> dict[str, Path]:
    """Return the newest RocksDB directory of each task below ``<state.dir>/<application.id>``."""
    newest: dict[str, tuple[int, Path]] = {}
    for path in _inside(base / "tasks"):
        match = _TASK.fullmatch(path.name)
        if match is None or not (path / ROCKSDB / "CURRENT").exists():
            continue
        generation = int(match["generation"] or 0)
        if generation >= newest.get(match["task"], (-1, path))[0]:
            newest[match["task"]] = (generation, path / ROCKSDB)
    return {task: path for task, (_, path) in newest.items()}


def global_files(base: Path) -> list[Path]:
    paths = (path / ROCKSDB for path in _inside(base / "global"))
    return [path for path in paths if (path / "CURRENT").exists()]


def held_locks(base: Path) -> frozenset[Path]:
    """Return the lock files that are held by processes of this host.

    If the kernel's list cannot be read, a lock counts as held while the process that it names is
    alive, although that process may have released it.
    """
    existing = [*_inside(base / "tasks"), *_inside(base / "global")]
    locks = [path for path in existing if path.suffix == ".lock"] + _inside(base / "workers")
    try:
        locked_inodes = _held_inodes(LOCKS.read_text().splitlines())
    except OSError:
        return frozenset(path for path in locks if _names_live_process(path))
    held = set()
    for path in locks:
        with suppress(OSError):  # it was removed meanwhile
            if path.stat().st_ino in locked_inodes:
                held.add(path)
    return frozenset(held)


def lock_of(files: Path) -> Path:
    return files.parent.with_name(f"{files.parent.name}.lock")


def _held_inodes(lines: Iterable[str]) -> frozenset[int]:
    """Return the inodes of locked files.

    >>> sorted(_held_inodes(["1: FLOCK  ADVISORY  WRITE 33 fe:00:99 0 EOF",
    ...                      "1: -> FLOCK  ADVISORY  WRITE 34 fe:00:98 0 EOF"]))
    [99]
    """
    # Devices are not compared: with btrfs and overlays, stat returns another device than the list.
    locks = (line.split() for line in lines)
    return frozenset(
        int(lock[5].rpartition(":")[2]) for lock in locks if len(lock) > 5 and lock[1] == "FLOCK"
    )


def _names_live_process(path: Path) -> bool:
    try:
        os.kill(int(path.read_text().split()[-1]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, IndexError):
        return False
    return True


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


_PREFIX = "headrace-secondary-"
_LOG = ".log"


class RocksSecondary:
    """Read-only view of a task's RocksDB files while another process writes them.

    Args:
        names: The stores to read; a store that does not exist yet has no position.

    Raises:
        StateError: The files cannot be read, or were replaced meanwhile; try again.
    """

    def __init__(self, path: Path, names: Iterable[str], *, memory: RocksMemory) -> None:
        self._path = path
        self._opened_version = _version(path)
        self._followed: dict[str, int] = {}
        self._stores: dict[str, RocksStore] = {}
        with open_file_list(path) or nullcontext() as listed_files:
            self._files = None if listed_files is None else listed_files.listed
            logs = _logs(path)
            with _log_directory() as log_directory, converted_errors():
                self._db = self._open(names, memory, log_directory)
                try:
                    self._require_all_files(memory, log_directory)
                except BaseException:
                    self.close()
                    raise
            self._require_complete(logs, listed_files)

    def _open(self, names: Iterable[str], memory: RocksMemory, log_directory: str) -> Rdict:
        options = row_options(memory)
        # Open all files now, so that files can be read after the writer has deleted them.
        options.set_max_open_files(-1)
        # By default RocksDB starts 16 threads for each column family to open files.
        options.set_max_file_opening_threads(1)
        require_readable(self._path)
        existing = set(Rdict.list_cf(str(self._path), options))
        families = {family_of(name): name for name in names if family_of(name) in existing}
        db = Rdict(
            str(self._path),
            options,
            column_families={family: row_options(memory) for family in families},
            access_type=AccessType.secondary(log_directory),
        )
        for family, name in families.items():
            self._stores[name] = RocksStore(db.get_column_family(family))
        return db

    def _require_all_files(self, memory: RocksMemory, log_directory: str) -> None:
        """Raise if a file of rows is damaged: a secondary silently shows the state before it.

        A read-only view reads the same list of files, and fails if one of them cannot be opened.
        """
        options = row_options(memory)
        options.set_max_open_files(-1)
        options.set_db_log_dir(log_directory)
        try:
            with converted_errors():
                strict = Rdict(
                    str(self._path),
                    options,
                    column_families={family_of(name): row_options(memory) for name in self._stores},
                    access_type=AccessType.read_only(False),
                )
        except StoreCorruptedError as error:
            if current_file_list(self._path) == self._files:
                raise
            # The writer has deleted a file after a compaction.
            raise StateError(
                f"files of {self._path} were replaced while it was opened; try again"
            ) from error
        listed = _file_names(strict)
        strict.close()
        if not listed <= _file_names(self._db):
            raise StateError(f"rows of {self._path} were flushed while it was opened; try again")

    def _require_complete(self, logs: dict[str, int], open_list: OpenFileList | None) -> None:
        """Raise if rows were moved from the log to files while the secondary was opened.

        RocksDB first lists files and then reads the log. Rows that were flushed in between, and
        whose log was deleted or never contained them, would be missing.
        """
        with converted_errors():
            stored = stored_file_list(self._db)
        if (
            (stored is not None and stored.is_damaged(open_list))
            or _version(self._path) != self._opened_version
            or not logs.keys() <= _logs(self._path).keys()
        ):
            self.close()
            raise StateError(f"rows of {self._path} were flushed while it was opened; try again")

    def follow(self) -> bool:
        """Catch up with the rows written until now; return False if a new secondary is required.

        A new one is required after the writer has reopened the files, or has flushed rows to files:
        rows that were read from the log before would hide newer rows in files.
        """
        if _version(self._path) != self._opened_version:
            return False
        logs = _logs(self._path)
        if logs == self._followed:
            return True
        if current_file_list(self._path) != self._files:
            return False
        with converted_errors():
            self._db.try_catch_up_with_primary()
        # Rows that were written meanwhile are read by the next call.
        self._followed = logs
        return current_file_list(self._path) == self._files

    @property
    def is_restoring(self) -> bool:
        """Whether a restore is in progress, so that rows may be newer than their positions."""
        with converted_errors():
            return is_restoring(self._db)

    def layout(self, name: str) -> str | None:
        with converted_errors():
            return read_layout(self._db, name)

    def store(self, name: str) -> RocksStore:
        if name not in self._stores:
            raise UnknownStoreError(f"{self._path} has no store {name!r}")
        return self._stores[name]

    def position(self, name: str) -> Position | None:
        if name not in self._stores:
            return None
        with converted_errors():
            return read_position(self._db, name, self._path)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        with suppress(DbClosedError):
            self._db.close()


def _file_names(db: Rdict) -> set[str]:
    return {file["name"] for file in db.live_files()}


@contextmanager
def _log_directory() -> Iterator[str]:
    """Create a directory that RocksDB writes its own log to while the secondary is opened.

    RocksDB keeps the log open, so the directory can be removed before a kill leaves it there.
    """
    try:
        log_directory = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise StateError(
            f"reading local state requires a directory in {tempfile.gettempdir()}: "
            f"{error.strerror}; free space there, or set TMPDIR"
        ) from error
    with log_directory as path:
        yield path


def _version(path: Path) -> tuple[int, int]:
    """Return a version of the files that changes when a writer opens or replaces them."""
    try:
        status = (path / "CURRENT").stat()
    except OSError as error:
        raise StateError(f"{path} contains no RocksDB: {error.strerror}") from error
    return status.st_ino, status.st_mtime_ns


def _logs(path: Path) -> dict[str, int]:
    """Return RocksDB's logs and their sizes; only restored rows bypass the logs."""
    sizes = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(_LOG):
                    with suppress(FileNotFoundError):  # it was deleted meanwhile
                        sizes[entry.name] = entry.stat().st_size
    except OSError as error:
        raise StateError(f"the files of {path} cannot be listed: {error.strerror}") from error
    return sizes
