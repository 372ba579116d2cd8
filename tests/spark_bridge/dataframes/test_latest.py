"""Compaction is exact: what is left of a partition is what a restore of it would give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark_bridge.dataframes.topic_rows import (
    LatestRow,
    Version,
    latest,
    versions,
    without_expired,
)
from headrace.state.layout import is_deletion, key_and_time
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.memory_cluster import MemoryMessage

PLACE = TopicPartition("changelog", 0)


def messages(records: list[tuple[bytes | None, bytes | None, int]]) -> list[MemoryMessage]:
    return [
        MemoryMessage(PLACE, offset, key, value, time, None, offset)
        for offset, (key, value, time) in enumerate(records)
    ]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.one_of(st.none(), st.binary(max_size=2)),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(RECORDS, st.integers(0, 30))
def test_latest_is_what_a_dict_would_hold(
    records: list[tuple[bytes, bytes | None, int]], cut: int
) -> None:
    found = messages(list(records))
    rows = latest([found[:cut], found[cut:]])
    wanted: dict[bytes, tuple[bytes, int]] = {}
    for key, value, time in records:
        wanted.pop(key, None)
        if value is not None:
            wanted[key] = value, time
    assert {row.key: (row.value, row.timestamp) for row in rows} == wanted
    assert [row.offset for row in rows] == sorted(row.offset for row in rows)


def test_records_without_a_key_are_passed_over() -> None:
    assert latest([messages([(None, b"x", 1), (b"k", b"y", 2)])]) == [LatestRow(b"k", b"y", 2, 1)]


def test_windows_past_their_retention_are_left_out() -> None:
    rows = [LatestRow(bytes([time]), b"", 0, 0) for time in (10, 40, 50)]
    assert [row.key[0] for row in without_expired(rows, lambda key: key[0], 20)] == [40, 50]
    assert len(without_expired(rows, lambda key: key[0], None)) == 3
    assert without_expired([], lambda key: key[0], 20) == []


def test_versions_hold_from_one_to_the_next() -> None:
    """A version that came late stands where its time is; a deletion ends one."""
    found = messages(
        [(b"k", b"1", 10), (b"k", b"3", 30), (b"k", b"2", 20), (b"k", None, 40), (b"j", b"x", 5)]
    )
    assert list(versions([found], None)) == [
        Version(b"j", b"x", 5, None, 4),
        Version(b"k", b"1", 10, 20, 0),
        Version(b"k", b"2", 20, 30, 2),
        Version(b"k", b"3", 30, 40, 1),
    ]


def test_versions_that_ended_before_the_history_are_left_out() -> None:
    found = messages([(b"k", b"1", 10), (b"k", b"2", 20), (b"k", b"3", 100)])
    assert [v.value for v in versions([found], 85)] == [b"1", b"2", b"3"]
    assert [v.value for v in versions([found], 80)] == [b"2", b"3"]


@given(RECORDS)
def test_versions_are_those_of_a_restored_store(
    records: list[tuple[bytes, bytes | None, int]],
) -> None:
    spec = StoreSpec("v", kind="memory", layout="versioned")
    state = MemoryTaskState([spec])
    state.write({"v": spec.rows.rows(records)}, {})
    kept = [
        (*key_and_time(row_key), row[1:])
        for row_key, row in state.store("v").scan(b"\x00", b"\x01")
        if not is_deletion(row)
    ]
    found = versions([messages(list(records))], None)
    assert [(v.key, v.valid_from, v.value) for v in found] == kept
