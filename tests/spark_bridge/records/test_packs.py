"""Packs say what is in them: where it goes, how many, how old, which comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.spark_bridge.records import packs
from headrace.spark_bridge.records.packs import (
    PACK,
    RECORD,
    ROW,
    Label,
    batches_of,
    opened,
    packed_records,
    packed_rows,
)
from headrace.spark_bridge.records.results import unpacked

LABEL = Label("record", 3, 1, "t")


def records(times: Sequence[int]) -> pa.RecordBatch:
    count = len(times)
    numbers = list(range(count))
    keys = [b"%d" % n for n in numbers]
    columns = [keys, keys, times, [None] * count, [50 + n for n in numbers], [2] * count, numbers,
               [0] * count]  # fmt: skip
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD)


def rows(count: int) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [0] * count, [b"%d" % n for n in range(count)], [b"v" * 100] * count, [9] * count,
        [None] * count,
    ]  # fmt: skip
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW)


def told(pack: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(PACK.names, pack, strict=True))


def test_records_are_packed_by_partition_in_their_order() -> None:
    places = np.array([1, 0, 1, 0, 1], np.int32)
    found = [told(pack) for pack in packed_records(LABEL, 7, records([5, 9, 3, 8, 4]), places)]
    assert [(p["partition"], p["rows"], p["oldest"]) for p in found] == [(0, 2, 8), (1, 3, 3)]
    assert [(p["mts"], p["src"], p["off"], p["seq"]) for p in found] == [
        (51, 2, 1, 0), (50, 2, 0, 0)
    ]  # fmt: skip
    assert [opened(p["data"]).column("off").to_pylist() for p in found] == [[1, 3], [0, 2, 4]]
    assert {(p["kind"], p["sub"], p["d"], p["topic"], p["number"]) for p in found} == {
        ("record", 3, 1, "t", 7)
    }


def test_rows_are_numbered_over_the_border_of_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come in the order of these numbers."""
    monkeypatch.setattr(packs, "PACK_BYTES", 300)
    label = Label("changelog", 0, 1, "c")
    found = list(packed_rows(label, 10, rows(25)))
    assert len(found) > 3
    seen = [row for batch in unpacked(batches_of(found)) for row in batch.to_pylist()]
    assert [row["number"] for row in seen] == list(range(10, 35))
    assert [row["key"] for row in seen] == [b"%d" % n for n in range(25)]
    assert {(row["kind"], row["sub"], row["d"], row["topic"]) for row in seen} == {
        ("changelog", 0, 1, "c")
    }
    assert sum(told(pack)["rows"] for pack in found) == 25


def test_no_row_is_lost_where_a_batch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 300)
    found = list(packed_rows(Label("sink", 0, 0, "s"), 0, rows(30)))
    monkeypatch.setattr(packs, "BATCH_BYTES", 2 * len(found[0][-1]))
    batches = list(batches_of(found))
    assert len(batches) > 3
    numbers = [number for batch in batches for number in batch.column("number").to_pylist()]
    assert numbers == [told(pack)["number"] for pack in found]
