"""Files as targets: SQLite, and the sink that was written for this."""

from __future__ import annotations

import fcntl
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace import ExternalSink, SqliteSink
from tests.sink_faults.journal import JournalSink, is_whole
from tests.sink_faults.targets import COLUMNS, Pids, Strike, as_row

_PATIENCE_S = 5.0


def hit_writer(paths: Sequence[Path], pids: Pids, act: Callable[[int], None]) -> int | None:
    """Wait a moment until a worker has a lock to write on one of some files, and act at once."""
    deadline = time.monotonic() + _PATIENCE_S
    inodes = {str(path.stat().st_ino) for path in paths if path.exists()}
    while time.monotonic() < deadline:
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:131090 0 EOF
            if "->" in words or words[3] != "WRITE" or int(words[4]) not in pids:
                continue
            if words[5].rpartition(":")[2] in inodes:
                act(int(words[4]))
                return int(words[4])
    return None


class SqliteTarget:
    """Both tables in one file."""

    def __init__(self) -> None:
        self._path = Path()

    def start(self, directory: Path) -> str:
        self._path = directory / "rows.db"
        return str(self._path)

    @staticmethod
    def sinks(address: str, worker: str) -> tuple[ExternalSink, ExternalSink]:
        del worker
        return (
            SqliteSink(address, "appended", COLUMNS, row=as_row, create=True),
            SqliteSink(address, "upserted", COLUMNS, key="id", create=True),
        )

    def strikes(self) -> Mapping[str, Strike]:
        return {"file locked by another": self._lock}

    def _lock(self, choose: random.Random) -> dict[str, Any]:
        seconds = choose.uniform(0.5, 4.0)
        with closing(self._open()) as database:
            database.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            database.execute("ROLLBACK")
        return {"seconds": round(seconds, 1)}

    def in_the_middle(
        self, pids: Pids, choose: random.Random, act: Callable[[int], None]
    ) -> int | None:
        del choose
        # In this mode of its log, who writes has a lock on the index of it.
        return hit_writer([self._path.with_name(f"{self._path.name}-shm")], pids, act)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def progress(self) -> int:
        try:
            ((found,),) = self._rows("SELECT coalesce(sum(next), 0) FROM headrace_positions")
        except sqlite3.OperationalError:
            return 0
        return int(found)

    def appended(self) -> Sequence[tuple[str, str]]:
        return self._rows("SELECT id, value FROM appended")

    def upserted(self) -> Sequence[tuple[str, str]]:
        return self._rows("SELECT id, value FROM upserted")

    def _rows(self, statement: str) -> list[Any]:
        with closing(self._open()) as database:
            return database.execute(statement).fetchall()

    def close(self) -> None:
        """It goes with the run's directory."""


class JournalTarget:
    """A file for each of the two sinks."""

    def __init__(self) -> None:
        self._paths: list[Path] = []

    def start(self, directory: Path) -> str:
        self._paths = [directory / "appended.jsonl", directory / "upserted.jsonl"]
        return str(directory)

    @staticmethod
    def sinks(address: str, worker: str) -> tuple[ExternalSink, ExternalSink]:
        del worker
        return (
            JournalSink(f"{address}/appended.jsonl"),
            JournalSink(f"{address}/upserted.jsonl", keyed=True),
        )

    def strikes(self) -> Mapping[str, Strike]:
        return {"file locked by another": self._lock}

    def _lock(self, choose: random.Random) -> dict[str, Any]:
        seconds = choose.uniform(0.5, 4.0)
        with choose.choice(self._paths).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(seconds)
        return {"seconds": round(seconds, 1)}

    def in_the_middle(
        self, pids: Pids, choose: random.Random, act: Callable[[int], None]
    ) -> int | None:
        del choose
        return hit_writer(self._paths, pids, act)

    def progress(self) -> int:
        return sum(path.stat().st_size for path in self._paths if path.exists())

    def appended(self) -> Sequence[tuple[str, str]]:
        return list(_rows(self._paths[0]))

    def upserted(self) -> Sequence[tuple[str, str]]:
        last = dict(_rows(self._paths[1]))
        return [(key, value) for key, value in last.items() if value is not None]

    def close(self) -> None:
        """They go with the run's directory."""


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as lines:
        for line in lines:
            if is_whole(line):
                yield from map(tuple, json.loads(line[9:])["rows"])
