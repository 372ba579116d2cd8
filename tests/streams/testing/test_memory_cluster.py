"""What a reader can tell apart on a real broker, the cluster in memory tells apart too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import confluent_kafka
import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.errors import OffsetLostError, ProducerFencedError, RecordTooLargeError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.memory_clients import (
    MemoryAdmin,
    MemoryConsumer,
    MemoryPlainProducer,
    MemoryTransactionalProducer,
)
from headrace.streams.testing.memory_cluster import MemoryCluster

PLACE = TopicPartition("t", 0)
INPUT = TopicPartition("in", 0)


class Listener:
    def __init__(self) -> None:
        self.assigned: list[TopicPartition] = []
        self.revoked: list[TopicPartition] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned += partitions

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked += partitions

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create("t")
    return cluster


@pytest.fixture
def producer(cluster: MemoryCluster) -> MemoryTransactionalProducer:
    producer = MemoryTransactionalProducer(cluster, "id")
    producer.init()
    return producer


def reader(cluster: MemoryCluster, *, committed: bool = True, offset: int = 0) -> MemoryConsumer:
    consumer = MemoryConsumer(cluster, group="g", committed=committed)
    consumer.add({PLACE: offset})
    return consumer


def values(consumer: MemoryConsumer, limit: int = 100) -> list[bytes | None]:
    return [m.value() for batch in consumer.poll(limit, 0).values() for m in batch]


def write(producer: MemoryTransactionalProducer, contents: Iterable[bytes]) -> None:
    for value in contents:
        producer.send("t", value, b"k", 0, 0, None)


def test_an_open_transaction_is_invisible_to_readers_of_committed_records(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    producer.begin()
    write(producer, [b"1"])
    assert values(reader(cluster)) == []
    assert values(reader(cluster, committed=False)) == [b"1"]
    producer.commit()
    assert values(reader(cluster)) == [b"1"]


def test_what_comes_behind_an_open_transaction_is_held_back_too(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    cluster.append("t", b"before", None, 0, 0, None)
    producer.begin()
    write(producer, [b"open"])
    cluster.append("t", b"after", None, 0, 0, None)
    assert values(reader(cluster)) == [b"before"]
    producer.abort()
    assert values(reader(cluster)) == [b"before", b"after"]


def test_aborted_records_stay_in_the_log(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    producer.begin()
    write(producer, [b"void"])
    producer.abort()
    assert values(reader(cluster)) == []
    assert values(reader(cluster, committed=False)) == [b"void"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_end_of_a_transaction_takes_an_offset_in_each_partition_that_it_wrote_to(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer, end: str
) -> None:
    untouched = cluster.create("other").logs[0]
    producer.begin()
    write(producer, [b"1", b"2"])
    getattr(producer, end)()
    assert cluster.log(PLACE).end == 3
    assert untouched.end == 0


def test_the_position_passes_markers_and_aborted_records(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    consumer = reader(cluster)
    assert consumer.positions([PLACE]) == {}, "nothing was heard of it yet"
    producer.begin()
    write(producer, [b"1"])
    producer.commit()
    producer.begin()
    write(producer, [b"void"])
    producer.abort()
    assert values(consumer) == [b"1"]
    assert consumer.positions([PLACE]) == {PLACE: 4}
    at_marker = reader(cluster, offset=1)
    assert values(at_marker) == []
    assert at_marker.positions([PLACE]) == {PLACE: 4}


def test_a_poll_that_is_full_leaves_the_rest_for_the_next(cluster: MemoryCluster) -> None:
    for i in range(5):
        cluster.append("t", b"%d" % i, None, 0, 0, None)
    consumer = reader(cluster)
    assert values(consumer, 2) == [b"0", b"1"]
    assert consumer.positions([PLACE]) == {PLACE: 2}
    assert values(consumer) == [b"2", b"3", b"4"]


def test_a_paused_partition_hands_out_nothing(cluster: MemoryCluster) -> None:
    cluster.append("t", b"1", None, 0, 0, None)
    consumer = reader(cluster)
    consumer.pause([PLACE])
    assert values(consumer) == []
    consumer.resume([PLACE])
    assert values(consumer) == [b"1"]


def test_keys_are_partitioned_like_kafkas_and_null_keys_take_turns() -> None:
    cluster = MemoryCluster(partitions=3)
    for i in range(20):
        key = b"key-%d" % i
        assert cluster.append("t", None, key, -1, 0, None).partition() == partition_for_key(key, 3)
    turns = [cluster.append("t", None, None, -1, 0, None).partition() for _ in range(6)]
    assert turns[:3] == turns[3:]
    assert sorted(turns[:3]) == [0, 1, 2]


def test_partition_counts_can_be_given_by_name() -> None:
    cluster = MemoryCluster(partitions={"wide": 4})
    assert len(cluster.create("wide").logs) == 4
    assert len(cluster.create("other").logs) == 1


def test_the_same_seed_gives_the_same_order_and_another_seed_another_one() -> None:
    def order(seed: int) -> list[int]:
        cluster = MemoryCluster(partitions=8, seed=seed)
        cluster.create("t")
        for place in cluster.partitions("t"):
            cluster.append("t", b"", None, place.partition, 0, None)
        consumer = MemoryConsumer(cluster, group=None, committed=True)
        consumer.add(dict.fromkeys(cluster.partitions("t"), 0))
        return [place.partition for _ in range(8) for place in consumer.poll(1, 0)]

    assert order(1) == order(1)
    assert sorted(order(1)) == list(range(8))
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_a_partition_is_added_once_as_a_real_client_has_it(cluster: MemoryCluster) -> None:
    consumer = reader(cluster)
    with pytest.raises(RuntimeError, match="t-0 is already part of the current assignment"):
        consumer.add({PLACE: 0})
    consumer.remove([PLACE])
    consumer.add({PLACE: 0})


def test_offsets_of_a_transaction_are_undecided_until_its_end(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    consumer = reader(cluster)
    offsets = {INPUT: CommittedOffset(7, "meta")}
    for end, expected in ((producer.abort, None), (producer.commit, offsets[INPUT])):
        producer.begin()
        producer.send_offsets(offsets, consumer.group_metadata())
        assert consumer.committed([INPUT], 0) is None
        assert consumer.committed([PLACE], 0) == {PLACE: None}, "another partition is decided"
        end()
        assert consumer.committed([INPUT], 0) == {INPUT: expected}


def test_a_new_producer_of_an_identity_aborts_what_the_old_one_left_and_fences_it(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    producer.begin()
    write(producer, [b"left open"])
    successor = MemoryTransactionalProducer(cluster, "id")
    successor.init()
    assert cluster.log(PLACE).last_stable == cluster.log(PLACE).end == 2
    with pytest.raises(ProducerFencedError, match="fenced"):
        write(producer, [b"zombie"])
    with pytest.raises(ProducerFencedError, match="fenced"):
        producer.commit()
    successor.begin()
    write(successor, [b"new"])
    successor.commit()
    assert values(reader(cluster)) == [b"new"]


def test_two_identities_have_transactions_side_by_side(cluster: MemoryCluster) -> None:
    first, second = (MemoryTransactionalProducer(cluster, name) for name in ("a", "b"))
    for producer in (first, second):
        producer.init()
        producer.begin()
    write(first, [b"1"])
    write(second, [b"2"])
    second.commit()
    assert values(reader(cluster)) == [], "the first one is open, and lower"
    first.commit()
    assert values(reader(cluster)) == [b"1", b"2"]


def test_changelog_ends_leave_out_the_marker(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    producer.begin()
    producer.send_changelog(PLACE, [(b"a", b"1", 5), (b"b", None, 6)])
    producer.commit()
    assert producer.changelog_ends([PLACE]) == {PLACE: 2}
    assert cluster.log(PLACE).end == 3


def test_without_transactions_records_are_visible_at_once_and_offsets_at_the_commit(
    cluster: MemoryCluster,
) -> None:
    consumer = reader(cluster)
    producer = MemoryPlainProducer(cluster, consumer.commit)
    producer.begin()
    producer.send("t", b"1", b"k", 0, 0, None)
    producer.send_offsets({INPUT: CommittedOffset(1)}, consumer.group_metadata())
    assert values(consumer) == [b"1"]
    assert consumer.committed([INPUT], 0) == {INPUT: None}
    producer.commit()
    assert consumer.committed([INPUT], 0) == {INPUT: CommittedOffset(1)}


def test_a_record_larger_than_the_topic_takes_is_refused(cluster: MemoryCluster) -> None:
    cluster.create("small", 1, {"max.message.bytes": "10"})
    producer = MemoryPlainProducer(cluster, lambda offsets: None)
    producer.send("small", b"12345", b"12345", 0, 0, None)
    with pytest.raises(RecordTooLargeError, match=r"11 bytes .* of 10 of small"):
        producer.send("small", b"123456", b"12345", 0, 0, None)
    with pytest.raises(RecordTooLargeError, match="a row whose key has 1 bytes"):
        producer.send_changelog(TopicPartition("small", 0), [(b"k", b"12345678901", 0)])


def test_a_deleted_offset_cannot_be_read(cluster: MemoryCluster) -> None:
    for _ in range(3):
        cluster.append("t", b"", None, 0, 0, None)
    admin = MemoryAdmin(cluster)
    admin.delete_records({PLACE: 2})
    assert admin.start_offsets([PLACE]) == {PLACE: 2}
    assert values(reader(cluster, offset=2)) == [b""]
    with pytest.raises(OffsetLostError, match="offsets 2 to 3"):
        values(reader(cluster, offset=1))


def test_every_partition_is_assigned_within_the_next_poll_and_revoked_by_a_close() -> None:
    cluster = MemoryCluster(partitions=2)
    cluster.create("a")
    cluster.create("b")
    consumer, listener = MemoryConsumer(cluster, group="g", committed=True), Listener()
    consumer.subscribe(["a", "b"], listener)
    assert listener.assigned == []
    consumer.poll(1, 0)
    consumer.poll(1, 0)
    assert listener.assigned == [TopicPartition(t, p) for t in ("a", "b") for p in (0, 1)]
    assert listener.revoked == []
    consumer.close(leave=True)
    assert listener.revoked == listener.assigned


def test_lag_counts_what_is_not_decided_yet(
    cluster: MemoryCluster, producer: MemoryTransactionalProducer
) -> None:
    producer.begin()
    write(producer, [b"1", b"2"])
    assert reader(cluster).lag(PLACE, 1) == 1
    assert reader(cluster).lag(PLACE, 5) == 0


@pytest.mark.parametrize(
    ("timestamp", "headers"),
    [(1.5, None), ("1", None), (1, ["a"]), (1, {"a": b"x"}), (1, [["a", b"x"]]), (1, [("a", 5)])],
)
def test_what_the_live_client_refuses_is_refused(timestamp: Any, headers: Any) -> None:
    cluster = MemoryCluster()
    cluster.create("t", 1)
    with pytest.raises(TypeError):
        cluster.append("t", b"v", None, 0, timestamp, headers)
    live = confluent_kafka.Producer({"bootstrap.servers": "localhost:1", "log_level": 0})
    # Our own producers hand on a list of what there is.
    given = list(headers) if headers else None
    with pytest.raises(TypeError):
        live.produce("t", b"v", None, -1, None, None, timestamp, given)
    assert cluster.log(TopicPartition("t", 0)).end == 0
