"""Where tasks' files are on this host, for those who only read: nothing is made or locked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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
