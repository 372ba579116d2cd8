"""The table of a mirror: what rows say, whatever was written in which order, and translation."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.mirror.table import (
    BLOCK_SEGMENTS,
    Blocks,
    Mirrored,
    Row,
    Segment,
    Table,
    group_row,
    joined,
    owner_row,
    runs_of,
    topic_row,
    translated,
)

PLACE = TopicPartition("orders", 3)


def _mirror(seed: int, transactions: int) -> tuple[dict[int, int], list[Row], Blocks, int]:
    """Copy a source with gaps to a target with gaps: which offset became which, and the rows."""
    rng = random.Random(seed)
    became: dict[int, int] = {}
    rows: list[Row] = []
    blocks = Blocks()
    source = target = 0
    for _ in range(transactions):
        offsets = []
        for _ in range(rng.randrange(4)):
            source += rng.randrange(3)  # markers, aborted records
            offsets += range(source, source + rng.randrange(1, 5))
            source = offsets[-1] + 1
        source += rng.randrange(2)
        target += rng.randrange(3) if rng.random() < 0.1 else 0  # what was aborted there
        became |= {offset: target + n for n, offset in enumerate(offsets)}
        rows += blocks.advance(PLACE, source, joined(runs_of(offsets), target))
        target += len(offsets) + 1
    return became, rows, blocks, source


@given(st.integers(0, 10**6), st.integers(0, 120))
def test_each_offset_becomes_that_of_the_next_record_there_and_back(seed: int, n: int) -> None:
    became, rows, blocks, end = _mirror(seed, n)
    table = Table.of(rows, all_segments_of=["orders"])
    segments = table.segments(PLACE)
    inverse = [one.inverse for one in segments]
    behind = max(became.values(), default=-1) + 1
    for offset in range(end + 1):
        to = translated(segments, offset)
        left = [there for here, there in became.items() if here >= offset]
        if became:
            assert to == min(left, default=behind)
            back = translated(inverse, to)
            assert back is not None
            assert [here for here in became if here >= back] == [h for h in became if h >= offset]
        else:
            assert to is None
    if n:
        assert table.blocks[PLACE] == blocks
        assert table.blocks[PLACE].position == end


@given(st.integers(0, 10**6))
def test_what_compaction_leaves_says_the_same(seed: int) -> None:
    became, rows, blocks, _ = _mirror(seed, 150)
    last = dict(rows)
    assert len(last) <= len(became) / BLOCK_SEGMENTS + 2
    table = Table.of(last.items(), all_segments_of=["orders"])
    assert table.blocks[PLACE] == blocks
    assert table.segments(PLACE) == Table.of(rows, all_segments_of=["orders"]).segments(PLACE)


def test_blocks_of_records_that_are_gone_are_deleted() -> None:
    _, rows, blocks, _ = _mirror(1, 400)
    assert len(blocks.ends) > 3
    begin = blocks.ends[1][1]
    deletions = blocks.dropped(PLACE, begin)
    assert [value for _, value in deletions] == [None, None]
    table = Table.of([*rows, *deletions], all_segments_of=["orders"])
    assert table.blocks[PLACE] == blocks
    assert all(one.target + one.length > begin for one in table.segments(PLACE))
    assert blocks.dropped(PLACE, begin) == []


def test_a_transaction_of_many_gaps_is_many_small_rows() -> None:
    blocks = Blocks()
    rows = blocks.advance(PLACE, 20_000, joined(runs_of(list(range(0, 20_000, 2))), 0))
    assert len({key for key, _ in rows}) == len(rows) == 10
    assert max(len(value or b"") for _, value in rows) < 50_000
    assert Table.of(rows).blocks[PLACE].target_end == 10_000


def test_who_writes_topics_and_groups() -> None:
    mirrored = Mirrored("west-id", "a", "west.orders", "b", ("north-id",))
    rows = [
        owner_row("x"),
        topic_row("orders", mirrored),
        topic_row("gone", mirrored),
        group_row("readers", PLACE, 5),
        group_row("readers", PLACE, 9),
        topic_row("gone", None),
        owner_row("y"),
    ]
    table = Table.of(rows)
    assert table.owner == "y"
    assert table.topics == {"orders": mirrored}
    assert table.groups == {"readers": {PLACE: 9}}


def test_segments_are_known_from_single_records() -> None:
    assert joined(runs_of([4]), 7) == [Segment(4, 7, 1)]
