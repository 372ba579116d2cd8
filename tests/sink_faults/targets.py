"""What rows are written to: how it is started, hurt and read; one more is a line of `targets`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace import ExternalSink

COLUMNS = {"id": str, "value": str}

Pids = Mapping[int, str]
"""Workers that live, by the numbers of their processes."""
Strike = Callable[[random.Random], dict[str, Any] | None]
"""Does something to a target; returns what, or None where it missed."""


def as_row(key: Any, value: Any) -> dict[str, Any]:
    """What the columns are looked for in."""
    return {"id": key, "value": value}


class Target(Protocol):
    """One kind of sink, with a place of its own."""

    def start(self, directory: Path) -> str:
        """Have it ready; returns what a worker's `sinks` are made of."""

    @staticmethod
    def sinks(address: str, worker: str) -> tuple[ExternalSink, ExternalSink | None]:
        """What appends, and what writes rows under their keys; made in a worker's process.

        Where there is only the one, it reads the topic directly, and has two rows of each record:
        their values are ``(0, value)`` and ``(1, value)``.
        """

    def strikes(self) -> Mapping[str, Strike]:
        """Its own kinds of faults."""

    def in_the_middle(
        self, pids: Pids, choose: random.Random, act: Callable[[int], None]
    ) -> int | None:
        """Do something to a worker that is in the middle of writing; returns to which one."""

    def progress(self) -> int:
        """A number that grows as rows are written."""

    def appended(self) -> Sequence[tuple[str, str]]:
        """All appended rows."""

    def upserted(self) -> Sequence[tuple[str, str]]:
        """All rows under keys."""

    def close(self) -> None:
        """Delete what it has."""


def targets() -> Mapping[str, type[Target]]:
    """All kinds, by name."""
    from tests.sink_faults.files import JournalTarget, SqliteTarget
    from tests.sink_faults.lake import ParquetTarget
    from tests.sink_faults.server import DirectTarget, PostgresTarget

    return {
        "postgres": PostgresTarget,
        "sqlite": SqliteTarget,
        "journal": JournalTarget,
        "parquet": ParquetTarget,
        "direct": DirectTarget,
    }
