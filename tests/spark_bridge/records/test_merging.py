"""Packs of several tasks, cut anywhere, give the records in their order and hold few of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark_bridge.records import merging, packs
from headrace.spark_bridge.records.merging import OpenPack, merged_packs, open_packs
from headrace.spark_bridge.records.packs import (
    ORDER,
    PACK,
    RECORD,
    Label,
    packed_records,
    packs_to_arrow,
)
from headrace.streams.kafka.protocols import TopicPartition

Record = tuple[int, int, int, int, int, int]
"""mts, src, off, seq, and the partition it is for, and the task that made it."""

Causes = st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 9))


@st.composite
def tasks(draw: st.DrawFn) -> list[list[Record]]:
    """What each of some tasks makes, in its order."""
    made = []
    for task in range(draw(st.integers(1, 4))):
        records: list[Record] = []
        for mts, src, off in sorted(draw(st.sets(Causes, max_size=12))):
            for seq, place in enumerate(draw(st.lists(st.integers(0, 1), max_size=3))):
                records.append((mts, src, off, seq, place, task))
        made.append(records)
    return made


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    values = [f"{record}".encode() for record in records]
    mts, src, off, seq, _, _ = zip(*records, strict=True)
    headers = [
        [{"name": "n", "value": value}] if number % 2 else None
        for number, value in enumerate(values)
    ]
    columns = [values, values, mts, headers, mts, src, off, seq]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD)


def packed(task: int, records: Sequence[Record], size: int) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(records), size):
        some = records[start : start + size]
        places = np.array([place for *_, place, _ in some], np.int32)
        yield from packed_records(Label("record", 0, task, "t"), start, batch_of(some), places)


def through_spark(made: list[list[Record]], size: int) -> Iterator[OpenPack]:
    found = [pack for task, records in enumerate(made) for pack in packed(task, records, size)]
    if not found:
        return iter(())
    at = [PACK.names.index(name) for name in ORDER]
    found.sort(key=lambda pack: [pack[i] for i in at])
    return open_packs([packs_to_arrow(found)])


@settings(deadline=None)
@given(tasks(), st.integers(1, 5), st.integers(1, 8))
def test_records_of_several_tasks_come_in_their_order(
    made: list[list[Record]], size: int, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "MERGE_ROWS", rows)
        blocks = list(merged_packs(through_spark(made, size), {}))
    seen = [record for block in blocks for record in block.records]
    wanted = sorted((record for one in made for record in one), key=lambda r: (*r[:4], r[5]))
    assert [record.value() for record in seen] == [f"{record}".encode() for record in wanted]
    assert [order for block in blocks for order in block.orders] == [r[:3] for r in wanted]
    assert [record.partition() for record in seen] == [record[4] for record in wanted]
    for block in blocks:
        assert len({record.partition() for record in block.records}) == 1
    for place in (0, 1):
        numbers = [record.offset() for record in seen if record.partition() == place]
        assert numbers == list(range(len(numbers)))
    for record in seen:
        headers = record.headers()
        assert headers is None or headers == [("n", record.value())]


def test_little_more_is_held_than_what_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MERGE_ROWS", 10)
    made: list[list[Record]] = [
        [(time, task, time, 0, 0, task) for time in range(1000)] for task in range(3)
    ]
    opened = 0

    def counted() -> Iterator[OpenPack]:
        nonlocal opened
        for pack in through_spark(made, 5):
            opened += pack.records.num_rows
            yield pack

    let_out = 0
    for block in merged_packs(counted(), {TopicPartition("t", 0): 0}):
        let_out += len(block.records)
        assert opened - let_out <= 30
    assert let_out == 3000


def test_large_records_are_packed_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 1000)
    records = [(n, 0, n, 0, 0, 0) for n in range(100)]
    found = [dict(zip(PACK.names, pack, strict=True)) for pack in packed(0, records, 100)]
    assert len(found) > 5
    assert sum(pack["rows"] for pack in found) == 100
    firsts = [pack["off"] for pack in found]
    assert firsts == sorted(set(firsts))


def test_ties_between_tasks_go_by_the_task_and_not_by_whose_pack_began_first() -> None:
    """Two tasks make records of one cause; the later one's pack has an earlier one before."""
    tied = (5, 0, 5, 0)
    made: list[list[Record]] = [
        [(*tied, 0, 0)],
        [(1, 0, 1, 0, 0, 1), (*tied, 0, 1)],
        [(*tied, 0, 2), (7, 0, 7, 0, 0, 2)],
    ]
    (block,) = merged_packs(through_spark(made, 9), {})
    wanted = [made[1][0], made[0][0], made[1][1], *made[2]]
    assert [record.value() for record in block.records] == [f"{one}".encode() for one in wanted]


def test_a_tie_at_a_border_waits_for_the_task_that_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one task has is let out before the next pack only as far as it is really before it."""
    monkeypatch.setattr(merging, "MERGE_ROWS", 1)
    tied = (5, 0, 5, 0)
    made: list[list[Record]] = [[(*tied, 0, 0)], [(1, 0, 1, 0, 0, 1), (*tied, 0, 1)]]
    blocks = list(merged_packs(through_spark(made, 9), {}))
    seen = [record.value() for block in blocks for record in block.records]
    assert seen == [f"{one}".encode() for one in (made[1][0], made[0][0], made[1][1])]


def test_ties_within_a_task_keep_the_order_of_its_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a flush of caches makes has one cause, and packs of it end anywhere."""
    records: list[Record] = [(5, 0, 5, 0, 0, 3)] * 1 + [(6, 0, 6, n, 0, 3) for n in range(40)]
    for size in (1, 3, 40):
        monkeypatch.setattr(merging, "MERGE_ROWS", 2)
        blocks = list(merged_packs(through_spark([[], [], [], records], size), {}))
        seen = [record.value() for block in blocks for record in block.records]
        assert seen == [f"{one}".encode() for one in records]


def test_records_of_an_input_keep_their_offsets_and_others_are_counted() -> None:
    made: list[list[Record]] = [[(n, 0, 10 * n, 0, n % 2, 0) for n in range(6)]]
    packs_ = list(through_spark(made, 2))
    inputs = {TopicPartition("t", 0): 0}
    seen = [record for block in merged_packs(iter(packs_), inputs) for record in block.records]
    assert [(r.partition(), r.offset()) for r in seen] == [
        (0, 0), (1, 0), (0, 20), (1, 1), (0, 40), (1, 2)
    ]  # fmt: skip
