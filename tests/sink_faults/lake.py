"""Parquet files as a target: two directories, whose folders fail now and then."""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from pyarrow import dataset

from headrace import ExternalSink, ParquetSink
from tests.sink_faults.targets import COLUMNS, Pids, Strike, as_row

_PATIENCE_S = 20.0
_EVERY = timedelta(seconds=0.5)
"""Files are small, so that many are being written when something strikes."""
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


class _Change(TypedDict):
    id: str
    value: str | None


class ParquetTarget:
    """A directory for each of the two sinks; there are no keys, so the last row of each counts."""

    def __init__(self) -> None:
        self._paths: list[Path] = []

    def start(self, directory: Path) -> str:
        self._paths = [directory / "appended", directory / "changes"]
        return str(directory)

    @staticmethod
    def sinks(address: str, worker: str) -> tuple[ExternalSink, ExternalSink]:
        del worker
        return (
            ParquetSink(f"{address}/appended", COLUMNS, row=as_row, every=_EVERY),
            ParquetSink(f"{address}/changes", _Change, row=as_row, every=_EVERY),
        )

    # -- faults --------------------------------------------------------------------------------

    def strikes(self) -> Mapping[str, Strike]:
        return {
            "folders are files for a while": self._spoil,
            "files vanish while they are written": self._take_away,
        }

    def _folders(self) -> list[Path]:
        return [folder for path in self._paths for folder in path.glob("partition=*")]

    def _spoil(self, choose: random.Random) -> dict[str, Any] | None:
        """Have each call about some folders fail, for who has them open and for who starts."""
        folders = self._folders()
        if not folders:
            return None
        hit = choose.sample(folders, choose.randrange(1, len(folders) + 1))
        seconds = choose.uniform(0.5, 4.0)
        with _spoiled(hit):
            time.sleep(seconds)
        return {"seconds": round(seconds, 1), "folders": len(hit)}

    def _take_away(self, choose: random.Random) -> dict[str, Any] | None:
        """Delete what is written to, before it has its name: the link to it fails."""
        del choose
        taken = 0
        deadline = time.monotonic() + _PATIENCE_S
        while not taken and time.monotonic() < deadline:
            for folder in self._folders():
                for hidden in _hidden(folder):
                    with suppress(FileNotFoundError):
                        hidden.unlink()
                        taken += 1
        return {"files": taken, "in_transaction": True} if taken else None

    def in_the_middle(
        self, pids: Pids, choose: random.Random, act: Callable[[int], None]
    ) -> int | None:
        """Wait a moment until a worker has a file open that has no name yet."""
        deadline = time.monotonic() + _PATIENCE_S
        order = list(pids)
        while time.monotonic() < deadline:
            choose.shuffle(order)
            for pid in order:
                if self._is_writing(pid):
                    act(pid)
                    return pid
        return None

    def _is_writing(self, pid: int) -> bool:
        with suppress(OSError):  # it has ended
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    name = os.readlink(entry.path).removesuffix(" (deleted)")
                    if ".parquet." in name and name.endswith(".tmp"):
                        return True
        return False

    # -- what it has ---------------------------------------------------------------------------

    def progress(self) -> int:
        return sum(len(_files(folder)) for folder in self._folders())

    def appended(self) -> Sequence[tuple[str, str]]:
        return self._rows(self._paths[0])

    def upserted(self) -> Sequence[tuple[str, str]]:
        last = dict(self._rows(self._paths[1]))
        return [(key, value) for key, value in last.items() if value is not None]

    @staticmethod
    def _rows(path: Path) -> list[tuple[str, Any]]:
        """All rows, those of a partition in their order."""
        files = [file for folder in path.glob("partition=*") for file in _files(folder)]
        if not files:
            return []
        table = dataset.dataset(files, format="parquet").to_table()
        return list(zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True))

    def close(self) -> None:
        """They go with the run's directory."""


def _files(folder: Path) -> list[str]:
    """The files of a partition in the order of their positions; the first one has none."""
    found = [file for file in folder.glob("*.parquet") if not file.name.startswith(".")]
    return [str(f) for f in sorted(found, key=lambda f: (not f.name.startswith("begin"), f.name))]


def _hidden(folder: Path) -> Iterator[Path]:
    return (file for file in folder.glob(".*.tmp"))


@contextmanager
def _spoiled(folders: Sequence[Path]) -> Iterator[None]:
    """Put files in the place of folders, which are never not there in between."""
    asides = {folder: folder.with_name(f".aside-{folder.name}") for folder in folders}
    for folder, aside in asides.items():
        aside.touch()
        _exchange(folder, aside)
    try:
        yield
    finally:
        for folder, aside in asides.items():
            _exchange(folder, aside)
            aside.unlink()


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(one))
