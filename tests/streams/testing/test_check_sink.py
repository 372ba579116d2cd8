"""check_sink: finds what a sink may get wrong, and nothing in those that come along."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.connectors.sqlite import SqliteSink
from headrace.streams.testing.check_sink import SinkCheckError, check_sink
from headrace.topology import MemorySink, SinkBatch, SinkFencedError, SinkRow

RECORDS = [(f"k{n % 4}", n) for n in range(12)]
CHANGES = [*RECORDS, ("k1", None), ("k2", 20), ("k3", None)]


class Wrong:
    """A sink in memory that gets one thing wrong."""

    keyed = False

    def __init__(self, what: str) -> None:
        self.what = what
        self.rows: list[SinkRow] = []
        self.kept: dict[Any, int] = {}

    def open(self, name: str) -> Wrong:
        return self

    def _place(self, source: str, partition: int) -> Any:
        if self.what == "forgets the source":
            return partition
        return 0 if self.what == "forgets the partition" else (source, partition)

    def positions(self, source: str, partitions: Sequence[int]) -> Mapping[int, int]:
        found = {p: self.kept.get(self._place(source, p)) for p in partitions}
        return {p: position for p, position in found.items() if position is not None}

    def write(self, batch: SinkBatch) -> None:
        place = self._place(batch.source, batch.partition)
        if self.what == "writes before it looks":
            self.rows += batch.rows
        present = self.kept.get(place)
        is_off = present != batch.expected
        if self.what == "takes what knows of no position":
            is_off = is_off and batch.expected is not None
        if self.what == "does not compare":
            is_off = False
        if is_off:
            raise SinkFencedError("elsewhere")
        if batch.rows or self.what != "leaves the position without rows":
            self.kept[place] = batch.next
        if self.what == "moves to the last row" and batch.rows:
            self.kept[place] = batch.rows[-1].offset
        if self.what != "writes before it looks":
            self.rows += batch.rows[1:] if self.what == "drops a row" else batch.rows

    def close(self) -> None:
        pass


def check(sink: Wrong) -> None:
    check_sink(sink, records=RECORDS, read=lambda: [row.value for row in sink.rows], kills=0)


def test_the_double_is_right_where_it_gets_nothing_wrong() -> None:
    check(Wrong("nothing"))


@pytest.mark.parametrize(
    "what",
    [
        "forgets the source",
        "forgets the partition",
        "writes before it looks",
        "takes what knows of no position",
        "does not compare",
        "leaves the position without rows",
        "moves to the last row",
        "drops a row",
    ],
)
def test_what_a_sink_gets_wrong_is_found(what: str) -> None:
    with pytest.raises(SinkCheckError, match=r"^seed \d+: "):
        check(Wrong(what))


def test_memory() -> None:
    sink = MemorySink(keyed=True)
    check_sink(sink, records=CHANGES, read=lambda: sink.as_dict().values(), kills=0)


@pytest.mark.parametrize("key", [(), "id"])
def test_sqlite(key: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    sink = SqliteSink(path, "rows", {"id": str, "n": int}, key=key, row=_row, create=True)

    def read() -> list[Any]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT id, n FROM rows").fetchall()

    check_sink(
        sink,
        records=CHANGES if key else RECORDS,
        read=read,
        as_read=lambda key, value: (key, value),
    )


def _row(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, "n": value}


class Torn:
    """Rows and positions in two files: a kill between them tears them apart."""

    keyed = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, name: str) -> Torn:
        return self

    def positions(self, source: str, partitions: Sequence[int]) -> Mapping[int, int]:
        files = {p: self.path / f"{source}-{p}" for p in partitions}
        return {p: int(file.read_text()) for p, file in files.items() if file.exists()}

    def write(self, batch: SinkBatch) -> None:
        if self.positions(batch.source, [batch.partition]).get(batch.partition) != batch.expected:
            raise SinkFencedError("elsewhere")
        for row in batch.rows:
            with (self.path / "rows").open("a") as rows:
                rows.write(f"{row.value}\n")
        (self.path / f"{batch.source}-{batch.partition}").write_text(str(batch.next))

    def close(self) -> None:
        pass


def test_a_kill_between_rows_and_position_is_found(tmp_path: Path) -> None:
    def read() -> list[int]:
        return [int(line) for line in (tmp_path / "rows").read_text().split()]

    records = [(f"k{n % 4}", n) for n in range(400)]
    with pytest.raises((SinkCheckError, ValueError)):
        check_sink(Torn(tmp_path), records=records, read=read, seeds=0, kills=30)
