"""A task's state as another process reads it: a RocksDB secondary, which follows the writer.

It shows what was written when `follow` was called last, whole commits only, and changes nothing of
the files. What RocksDB deletes meanwhile it keeps open, so it goes on where the writer is gone, and
disk space comes free once it follows or is closed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rocksdict import AccessType, DbClosedError, Rdict

from headrace.state.errors import StateError, UnknownStoreError
from headrace.state.file_list import OpenList, list_of_files, open_list, require_readable
from headrace.state.layout import noted_layout
from headrace.state.rocks import (
    RocksMemory,
    RocksStore,
    failures,
    family_of,
    is_restoring,
    kept_list,
    read_position,
    row_options,
)
from headrace.state.store import Position

# Where tasks' files are on this host, for those who only read: nothing is made or locked.


_TASK = re.compile(r"(?P<task>[0-9]+_[0-9]+)(\.g(?P<generation>[0-9]+))?")
ROCKSDB = "rocksdb"
LOCKS = Path("/proc/locks")
"""Where the kernel tells who holds which file; to try a lock could keep a worker out."""


def task_files(base: Path) -> dict[str, Path]:
    """The RocksDB of each task, of its newest generation.

    Args:
        base: ``<state.dir>/<application.id>``.
    """
    newest: dict[str, tuple[int, Path]] = {}
    for path in _inside(base / "tasks"):
        found = _TASK.fullmatch(path.name)
        if found is None or not (path / ROCKSDB / "CURRENT").exists():
            continue
        generation = int(found["generation"] or 0)
        if generation >= newest.get(found["task"], (-1, path))[0]:
            newest[found["task"]] = (generation, path / ROCKSDB)
    return {task: path for task, (_, path) in newest.items()}


def global_files(base: Path) -> list[Path]:
    """The RocksDBs of global tables, one for each worker that had some."""
    paths = (path / ROCKSDB for path in _inside(base / "global"))
    return [path for path in paths if (path / "CURRENT").exists()]


def held_locks(base: Path) -> frozenset[Path]:
    """The locks of an application that processes of this host hold: of tasks, tables and workers.

    Where the kernel tells of none, that is believed of a process which a lock names and which is
    alive: it may have let go of the lock meanwhile.

    Args:
        base: ``<state.dir>/<application.id>``.
    """
    there = [*_inside(base / "tasks"), *_inside(base / "global")]
    locks = [path for path in there if path.suffix == ".lock"] + _inside(base / "workers")
    try:
        held = _held_inodes(LOCKS.read_text().splitlines())
    except OSError:
        return frozenset(path for path in locks if _names_living(path))
    found = set()
    for path in locks:
        with suppress(OSError):  # it was removed meanwhile
            if path.stat().st_ino in held:
                found.add(path)
    return frozenset(found)


def lock_of(files: Path) -> Path:
    """The lock of whoever writes a RocksDB that `task_files` or `global_files` gave."""
    return files.parent.with_name(f"{files.parent.name}.lock")


def _held_inodes(lines: Iterable[str]) -> frozenset[int]:
    """The files that are locked.

    >>> sorted(_held_inodes(["1: FLOCK  ADVISORY  WRITE 33 fe:00:99 0 EOF",
    ...                      "1: -> FLOCK  ADVISORY  WRITE 34 fe:00:98 0 EOF"]))
    [99]
    """
    # Devices are not compared: btrfs and overlays tell stat another one than the kernel's list.
    words = (line.split() for line in lines)
    return frozenset(
        int(one[5].rpartition(":")[2]) for one in words if len(one) > 5 and one[1] == "FLOCK"
    )


def _names_living(path: Path) -> bool:
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
        path: the RocksDB's directory; another process may have it open.
        names: the stores that are wanted; those that are not there yet have no position.
        memory: what the secondaries of a process share.

    Raises:
        StateError: it cannot be read, or its files were replaced meanwhile; try it again.
    """

    def __init__(self, path: Path, names: Iterable[str], *, memory: RocksMemory) -> None:
        self._path = path
        self._was = _version(path)
        self._followed: dict[str, int] = {}
        self._stores: dict[str, RocksStore] = {}
        with open_list(path) or nullcontext() as found:
            self._files = None if found is None else found.listed
            logs = _logs(path)
            with _own_directory() as own, failures():
                self._db = self._open(names, memory, own)
            self._require_whole(logs, found)

    def _open(self, names: Iterable[str], memory: RocksMemory, own: str) -> Rdict:
        options = row_options(memory)
        # All files are opened at once, so that one can be read that the writer has deleted.
        options.set_max_open_files(-1)
        # RocksDB would start threads for that at each look, as many for each family: 16 by default.
        options.set_max_file_opening_threads(1)
        require_readable(self._path)
        there = set(Rdict.list_cf(str(self._path), options))
        families = {family_of(name): name for name in names if family_of(name) in there}
        db = Rdict(
            str(self._path),
            options,
            column_families={family: row_options(memory) for family in families},
            access_type=AccessType.secondary(own),
        )
        for family, name in families.items():
            self._stores[name] = RocksStore(db.get_column_family(family))
        return db

    def _require_whole(self, logs: dict[str, int], found: OpenList | None) -> None:
        """See that it has all rows up to some moment: files are looked for first, then the log.

        Where rows went to a file in between, and their log was deleted or never had them, they are
        in neither.
        """
        with failures():
            kept = kept_list(self._db)
        if (
            (kept is not None and kept.is_damaged(found))
            or _version(self._path) != self._was
            or not logs.keys() <= _logs(self._path).keys()
        ):
            self.close()
            raise StateError(f"rows of {self._path} went to files while it was opened; try again")

    def follow(self) -> bool:
        """Show what is written by now.

        Returns:
            Whether it can: not where the writer has begun anew, or rows went to files. What was
            read of them in the log stands above the files, and what of the log is in files is not
            read any more, so that rows would be older than others. Make another secondary then.

        Raises:
            StateError: the files cannot be read.
        """
        if _version(self._path) != self._was:
            return False
        logs = _logs(self._path)
        if logs == self._followed:
            return True
        if list_of_files(self._path) != self._files:
            return False
        with failures():
            self._db.try_catch_up_with_primary()
        # What came while it caught up is for the next time.
        self._followed = logs
        return list_of_files(self._path) == self._files

    @property
    def is_restoring(self) -> bool:
        """Whether rows may be ahead of their positions, as they come from changelogs."""
        with failures():
            return is_restoring(self._db)

    def layout(self, name: str) -> str | None:
        """How the rows of a store lie; None where older files do not say."""
        with failures():
            return noted_layout(self._db, name)

    def store(self, name: str) -> RocksStore:
        """Return a store's rows.

        Raises:
            UnknownStoreError: it is not there.
        """
        if name not in self._stores:
            raise UnknownStoreError(f"{self._path} has no store {name!r}")
        return self._stores[name]

    def position(self, name: str) -> Position | None:
        """Return the position of a store, or None where its rows say nothing yet."""
        if name not in self._stores:
            return None
        with failures():
            return read_position(self._db, name, self._path)

    def close(self) -> None:
        """Let go of the files."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        with suppress(DbClosedError):
            self._db.close()


@contextmanager
def _own_directory() -> Iterator[str]:
    """A directory for what RocksDB tells about a secondary, while that is opened.

    Nothing else is written there, and into a file that stays open: without it, nothing is left
    behind wherever the process is killed.

    Raises:
        StateError: there is no room for one.
    """
    try:
        own = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise StateError(
            f"what reads local state needs a directory in {tempfile.gettempdir()}: "
            f"{error.strerror}; make room there, or set TMPDIR"
        ) from error
    with own as path:
        yield path


def _version(path: Path) -> tuple[int, int]:
    """Changes when the files are opened by a writer, or are others: it begins another list then."""
    try:
        found = (path / "CURRENT").stat()
    except OSError as error:
        raise StateError(f"{path} has no RocksDB: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns


def _logs(path: Path) -> dict[str, int]:
    """RocksDB's logs and their sizes: all that is written goes there, but for restored rows."""
    sizes = {}
    try:
        with os.scandir(path) as found:
            for one in found:
                if one.name.endswith(_LOG):
                    with suppress(FileNotFoundError):  # it was deleted at this very moment
                        sizes[one.name] = one.stat().st_size
    except OSError as error:
        raise StateError(f"the files of {path} cannot be seen: {error.strerror}") from error
    return sizes
