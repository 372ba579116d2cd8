"""Large rows are packed before there are many of them; small ones ten thousand at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.spark_bridge.records import merging, outputs, packs
from headrace.spark_bridge.records.merging import merged_packs, open_packs
from headrace.spark_bridge.records.outputs import Outputs
from headrace.spark_bridge.records.packs import opened
from headrace.streams.plan.plan import TaskId

TASK = TaskId(0, 0)
MIB = 1 << 20


def make() -> Outputs:
    return Outputs(partitions={"words": 2}, internal=["words"])


def sizes(batches: list[pa.RecordBatch]) -> list[int]:
    return [sum(len(data.as_buffer()) for data in batch.column("data")) for batch in batches]


@pytest.mark.parametrize("topic", ["words", "out"])
def test_large_rows_go_to_spark_in_batches_that_stay_small(topic: str) -> None:
    """Arrow's columns of bytes end at 2 GiB, and so do what Spark takes in one batch."""
    made = make()
    send = made.sender(TASK)
    for number in range(40):
        made.cause = (number, 0, number)
        send(topic, b"v" * MIB, b"%d" % number, -1, number, None)
    batches = list(made.take(everything=True))
    assert sum(sizes(batches)) > 40 * MIB
    assert max(sizes(batches)) < 10 * MIB
    values = [
        value
        for batch in batches
        for data in batch.column("data")
        for value in opened(data.as_buffer()).column("value").to_pylist()
    ]
    assert len(values) == 40
    assert set(values) == {b"v" * MIB}


@pytest.mark.parametrize("kind", ["value", "headers"])
def test_rows_become_columns_before_they_fill_the_memory(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "BUFFERED_BYTES_MAX", 100_000)
    taken: list[int] = []
    real = outputs.OutputRows.packs

    def noted(rows: outputs.OutputRows, *arguments: object) -> object:
        taken.append(len(rows.rows))
        return real(rows, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(outputs.OutputRows, "packs", noted)
    made = make()
    send = made.sender(TASK)
    large = b"x" * 9_900
    for number in range(100):
        made.cause = (number, 0, number)
        value, headers = (large, None) if kind == "value" else (b"", [("h", large)])
        send("words", value, b"k", -1, 0, headers)
    assert taken
    assert max(taken) <= 11


def test_the_effects_of_one_record_stay_in_order_over_a_border(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "BUFFERED_BYTES_MAX", 1000)
    made = make()
    send = made.sender(TASK)
    for number in range(3):
        made.cause = (number, 0, number)
        for _ in range(50):
            send("words", b"v", b"k", 0, 0, None)
    seen = [
        (one["off"], one["seq"])
        for batch in made.take(everything=True)
        for data in batch.column("data")
        for one in opened(data.as_buffer()).select(["off", "seq"]).to_pylist()
    ]
    assert seen == [(number, seq) for number in range(3) for seq in range(50)]


def test_a_store_with_large_rows_is_packed_by_and_by() -> None:
    made = make()
    rows = ((b"%d" % number, b"v" * MIB, number) for number in range(64))
    tracemalloc.start()
    try:
        found = sum(batch.num_rows for batch in made.add(TASK, "changelog", "c", rows, 0))
        found += sum(batch.num_rows for batch in made.take(everything=True))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 64
    assert most < 48 * MIB  # less than there are rows; Arrow's own memory is not counted here


def test_large_records_are_let_out_before_twenty_thousand_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 10_000)
    monkeypatch.setattr(merging, "MERGE_BYTES", 50_000)
    made = make()
    send = made.sender(TASK)
    for number in range(200):
        made.cause = (number, 0, number)
        send("words", b"v" * 5000, b"k", 0, number, None)
    batches = list(made.take(everything=True))
    brought = 0

    def one_by_one() -> Iterator[pa.RecordBatch]:
        nonlocal brought
        for batch in batches:
            for row in range(batch.num_rows):
                brought += batch.column("rows")[row].as_py()
                yield batch.slice(row, 1)

    let_out = 0
    for block in merged_packs(open_packs(one_by_one()), {}):
        assert brought - let_out <= 20
        let_out += len(block.records)
    assert let_out == 200
