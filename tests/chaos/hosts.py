"""What happens to the local state of a host whose worker is dead: deleted, damaged, put back."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unowned_task(tasks: Path, name: str) -> Iterator[Path | None]:
    """A task's directory while no worker has it, or None: the lock is held as a worker would."""
    lock = os.open(tasks / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
        else:
            directory = tasks / name
            yield directory if directory.is_dir() else None
    finally:
        os.close(lock)


def task_directories(state_dir: Path, application_id: str) -> Path:
    """Where the tasks of a host are."""
    return state_dir / application_id / "tasks"


def delete(directory: Path) -> str:
    """Lose the state of a task."""
    _remove(directory)
    return "deleted"


def _remove(directory: Path) -> None:
    """Move it away first: a process that serves queries may open files in it."""
    with tempfile.TemporaryDirectory(dir=directory.parents[2]) as trash:
        directory.rename(Path(trash, directory.name))


def copy(directory: Path, to: Path) -> None:
    """Keep a copy of a task's state; an earlier one is dropped."""
    if to.exists():
        shutil.rmtree(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(directory, to)


def put_back(copied: Path, directory: Path) -> str:
    """Replace a task's state by an older copy of it."""
    _remove(directory)
    shutil.copytree(copied, directory, dirs_exist_ok=True)
    return "replaced by an older copy"


def corrupt(directory: Path, choose: random.Random) -> str | None:
    """Damage one of RocksDB's files as a bad disk would; returns what was done."""
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file()
        and path.stat().st_size > 0
        and (path.suffix in (".sst", ".log") or path.name.startswith(("MANIFEST", "CURRENT")))
    )
    if not files:
        return None
    kinds = sorted({_kind(path) for path in files})
    kind = choose.choice(kinds)
    path = choose.choice([path for path in files if _kind(path) == kind])
    size = path.stat().st_size
    if choose.random() < 0.4:
        length = choose.randrange(size)
        os.truncate(path, length)
        return f"{path.name} cut from {size} to {length} bytes"
    with path.open("r+b") as file:
        begin = choose.randrange(size)
        file.seek(begin)
        file.write(choose.randbytes(min(64, size - begin)))
    return f"64 bytes of {path.name} overwritten at {begin} of {size}"


def _kind(path: Path) -> str:
    return path.suffix or path.name.split("-", maxsplit=1)[0]
