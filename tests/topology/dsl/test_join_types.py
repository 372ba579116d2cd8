"""What a type checker knows of the results of joins, and what it refuses."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import assert_type

import pytest

from headrace.topology import JoinWindows, KStream, KTable, StreamsBuilder, serdes
from tests.support.type_checker import type_check

MINUTE = JoinWindows(time_difference=timedelta(minutes=1))


def streams() -> tuple[KStream[str, int], KStream[str, bytes], KTable[str, float]]:
    builder = StreamsBuilder()
    return (
        builder.stream("a", key=serdes.string, value=serdes.integer),
        builder.stream("b", key=serdes.string, value=serdes.bytes),
        builder.table("t", key=serdes.string, value=serdes.double),
    )


def both(value: int, other: bytes) -> complex:
    return value + len(other)


def both_of(key: str, value: int, other: bytes) -> complex:
    return len(key) + value + len(other)


def left(value: int, other: bytes | None) -> complex:
    return value + len(other or b"")


def outer_of(key: str, value: int | None, other: bytes | None) -> complex:
    return len(key) + (value or 0) + len(other or b"")


def row(value: int, row: float) -> complex:
    return value + row


def row_of(key: str, value: int, row: float | None) -> complex:
    return len(key) + value + (row or 0)


def test_a_join_has_the_type_of_what_its_joiner_returns() -> None:
    a, b, t = streams()
    assert_type(a.join(b, both, MINUTE), KStream[str, complex])
    assert_type(a.join(b, both_of, MINUTE, with_key=True, name="n1"), KStream[str, complex])
    assert_type(a.left_join(b, left, MINUTE), KStream[str, complex])
    assert_type(a.outer_join(b, outer_of, MINUTE, with_key=True), KStream[str, complex])
    assert_type(a.join(t, row), KStream[str, complex])
    assert_type(a.left_join(t, row_of, with_key=True), KStream[str, complex])


REFUSED = {
    "a left join with a joiner that takes no None": "a.left_join(b, both, MINUTE)",
    "an outer join with a joiner that takes no None": "a.outer_join(b, left, MINUTE)",
    "a left join with a table and a joiner that takes no None": "a.left_join(t, row)",
    "two streams without windows": "a.join(b, both)",
    "a table with windows": "a.join(t, row, MINUTE)",
    "a joiner of three without with_key": "a.join(b, both_of, MINUTE)",
    "a stream of other keys": "a.join(b.select_key(lambda k, v: 1), both, MINUTE)",
}


@pytest.mark.slow
def test_what_cannot_work_is_refused_by_a_type_checker(tmp_path: Path) -> None:
    script = tmp_path / "joins.py"
    lines = ["from tests.topology.dsl.test_join_types import *", "a, b, t = streams()"]
    script.write_text("\n".join([*lines, *REFUSED.values()]) + "\n")
    report, _, _ = type_check("--strict", "--hide-error-context", str(script))
    for number, (what, line) in enumerate(REFUSED.items(), start=len(lines) + 1):
        assert f"joins.py:{number}: error" in report, (what, line, report)
