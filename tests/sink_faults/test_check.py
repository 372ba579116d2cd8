"""The recount notices what is lost, doubled, aborted or stale; the journal what is torn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import SinkBatch, SinkRow
from headrace.streams.testing.check_sink import check_sink
from tests.sink_faults.check import Record, check
from tests.sink_faults.files import JournalTarget
from tests.sink_faults.journal import JournalSink

RECORDS: list[Record] = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("b", None)]
APPENDED = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")]
UPSERTED = [("a", "3"), ("c", "4")]

Rows = list[tuple[str, str]]


def test_what_is_right_is_said_to_be() -> None:
    assert check(RECORDS, APPENDED[::-1], UPSERTED[::-1]).is_right


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("lost", lambda appended, _: appended.pop()),
        ("doubled", lambda appended, _: appended.append(("a", "1"))),
        ("aborted", lambda appended, _: appended.append(("a", "aborted-9"))),
        ("unknown", lambda appended, _: appended.append(("a", "9"))),
        ("stale", lambda _, upserted: upserted.__setitem__(0, ("a", "1"))),
        ("stale", lambda _, upserted: upserted.append(("b", "2"))),
        ("stale", lambda _, upserted: upserted.pop()),
        ("doubled", lambda _, upserted: upserted.append(("c", "4"))),
        ("aborted", lambda _, upserted: upserted.__setitem__(0, ("a", "aborted-9"))),
    ],
)
def test_each_damage_is_noticed(kind: str, damage: Callable[[Rows, Rows], object]) -> None:
    appended, upserted = list(APPENDED), list(UPSERTED)
    damage(appended, upserted)
    verdict = check(RECORDS, appended, upserted)
    assert getattr(verdict, kind) == 1, verdict
    assert not verdict.is_right


@pytest.mark.parametrize("keyed", [False, True])
def test_the_journal_stands_the_check_of_sinks(tmp_path: Path, *, keyed: bool) -> None:
    target = JournalTarget()
    target.start(tmp_path)
    path = tmp_path / ("upserted.jsonl" if keyed else "appended.jsonl")
    sink = JournalSink(str(path), keyed=keyed)
    path.touch()
    records: list[tuple[str, Any]] = [(f"k{n % 4}", str(n)) for n in range(12)]

    def read() -> list[tuple[str, str]]:
        return [(key, value) for key, value in (target.upserted if keyed else target.appended)()]

    check_sink(
        sink,
        records=[*records, ("k1", None), ("k2", "20")] if keyed else records,
        read=read,
        as_read=lambda key, value: (key, value),
    )


def test_half_a_line_of_the_journal_is_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    first = JournalSink(str(path)).open("app/keep")
    first.write(SinkBatch("in", 0, None, 1, [SinkRow("a", "1", 0, 0)]))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    second = JournalSink(str(path)).open("app/keep")
    assert second.positions("in", [0]) == {0: 1}
    second.write(SinkBatch("in", 0, 1, 2, [SinkRow("a", "2", 0, 1)]))
    assert len(path.read_bytes().splitlines()) == 2
