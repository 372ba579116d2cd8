"""Records that are to be left out never reach the topology, and are named in the log."""

from __future__ import annotations

from typing import Any

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.progress import OffsetMetadata, left_out, left_out_values
from headrace.streams.tasks.committed_numbers import MarkedRecords
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import EventLog

HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)


def batch(*offsets: int) -> list[Any]:
    cluster = MemoryCluster()
    cluster.create("in", 1)
    for _ in range(max(offsets) + 1):
        cluster.append("in", b"", b"", 0, 0, None)
    found = cluster.log(HERE).read(0, 1000, committed=True)[0]
    return [message for message in found if message.offset() in offsets]


def test_a_batch_without_one_is_handed_on_as_it_is() -> None:
    records = batch(1, 2)
    assert MarkedRecords({HERE: OffsetMetadata()}, "0_0", None).of(HERE, records) is records
    marked = {HERE: OffsetMetadata(5, left_out_values([7])), THERE: OffsetMetadata()}
    assert MarkedRecords(marked, "0_0", None).of(HERE, records) is records
    assert MarkedRecords(marked, "0_0", None).of(THERE, records) is records


def test_those_of_this_partition_are_taken_out_and_named() -> None:
    log = EventLog()
    passed = MarkedRecords({HERE: OffsetMetadata(5, left_out_values([1, 3, 9]))}, "0_0", log)
    kept = passed.of(HERE, batch(0, 1, 2, 3))
    assert [record.offset() for record in kept] == [0, 2]
    named = [e["offset"] for e in log.events if e["event"] == "marked_record_skipped"]
    assert named == [1, 3]
    assert passed.of(HERE, batch(1)) == []


def test_those_that_are_still_to_come_are_committed_again() -> None:
    passed = MarkedRecords({HERE: OffsetMetadata(5, left_out_values([1, 3, 9]))}, "0_0", None)
    assert left_out(passed.values(HERE, 0)) == [1, 3, 9]
    assert left_out(passed.values(HERE, 3)) == [3, 9]
    assert passed.values(HERE, 10) == {}
    assert passed.values(THERE, 0) == {}
