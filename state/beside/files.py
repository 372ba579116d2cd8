"""Where tasks' files are on this host, for those who only read: nothing is made or locked."""

from __future__ import annotations

import re
from pathlib import Path

_TASK = re.compile(r"(?P<task>[0-9]+_[0-9]+)(\.g(?P<generation>[0-9]+))?")
ROCKSDB = "rocksdb"


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


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
