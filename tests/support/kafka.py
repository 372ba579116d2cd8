"""Plain clients for tests: write records, read whole topics at either isolation level."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka.admin import AdminClient

from tests.support.patience import PATIENCE_S

Isolation = Literal["read_committed", "read_uncommitted"]
_ANSWER_S = 10.0
_MARKERS_S = 1.0
"""Markers take milliseconds; a transaction without one for so long is left open on purpose."""


class Record(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None


def write(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    timestamp: int = 1_700_000_000_000,
) -> None:
    """Write records, partitioned as Kafka's own producer does it, and wait for all of them."""
    failed = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "on_delivery": lambda error, _: failed.append(error) if error else None,
        }
    )
    for number, (key, value) in enumerate(records):
        producer.produce(topic, value, key, timestamp=timestamp + number)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed


def write_transaction(bootstrap: str, topic: str, partitions: Sequence[int]) -> None:
    """Write a record to each of these partitions in one transaction, and wait for its markers."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"writes-{topic}"}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    places = {(topic, partition) for partition in partitions}
    for partition in partitions:
        producer.produce(topic, b"v", b"k", partition)
    producer.commit_transaction(PATIENCE_S)
    _await_markers({"bootstrap.servers": bootstrap}, places)


def reader(
    bootstrap: str, isolation: Isolation = "read_committed", **more: str
) -> confluent_kafka.Consumer:
    """A consumer without a group that says at once where there are no more records.

    A secured broker needs `more` settings.
    """
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 2,
            # The end of a partition is told after an empty answer.
            "fetch.wait.max.ms": 10,
            **more,
        }
    )


def batch(
    consumer: confluent_kafka.Consumer, count: int, timeout_s: float
) -> list[confluent_kafka.Message]:
    """What is there, or the first that comes in time; `consume` waits for a whole batch."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(count - 1, 0)]


def to_the_ends(
    consumer: confluent_kafka.Consumer, places: Iterable[tuple[str, int]]
) -> Iterator[confluent_kafka.Message]:
    """Yield the records of the assigned partitions, which are all of `places`, up to their ends."""
    waiting = set(places)
    while waiting:
        messages = batch(consumer, 1000, PATIENCE_S)
        assert messages, f"nothing came of {waiting}"
        for message in messages:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                waiting.discard((str(message.topic()), message.partition() or 0))
            else:
                raise confluent_kafka.KafkaException(error)


def _partitions(consumer: confluent_kafka.Consumer, topic: str) -> list[int]:
    return list(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)


def _led_partitions(consumer: confluent_kafka.Consumer, topic: str) -> list[int]:
    """A topic's partitions, once each has a leader.

    A broker that was silent for seconds leads nothing until it is back in its place. A client that
    asks for offsets before goes on saying that there are no leaders.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        found = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        if all(partition.leader >= 0 for partition in found.values()):
            return list(found)
        time.sleep(0.05)
    raise AssertionError(f"topic {topic} has no leader for every partition")


def read_all(
    bootstrap: str, topics: Iterable[str], isolation: Isolation = "read_committed", **more: str
) -> dict[str, list[Record]]:
    """Read topics from their starts to their ends: for read_committed the last stable offsets.

    A commit is answered before its markers are written, so these are waited for.
    """
    consumer = reader(bootstrap, isolation, **more)
    found: dict[str, list[Record]] = {topic: [] for topic in topics}
    try:
        places = [
            (topic, partition) for topic in found for partition in _led_partitions(consumer, topic)
        ]
        if isolation == "read_committed":
            _await_markers({"bootstrap.servers": bootstrap, **more}, places)
        consumer.assign([confluent_kafka.TopicPartition(*place, 0) for place in places])
        for message in to_the_ends(consumer, places):
            columns: Any = (
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.timestamp()[1],
                message.headers(),
            )
            found[str(message.topic())].append(Record(*columns))
    finally:
        consumer.close()
    return found


def _await_markers(settings: dict[str, Any], places: Collection[tuple[str, int]]) -> None:
    written = _ends(settings, places, confluent_kafka.IsolationLevel.READ_UNCOMMITTED)
    give_up_s = time.monotonic() + _MARKERS_S
    while time.monotonic() < give_up_s:
        stable = _ends(settings, places, confluent_kafka.IsolationLevel.READ_COMMITTED)
        if all(stable[place] >= written[place] for place in places):
            return
        time.sleep(0.01)


def _ends(
    settings: dict[str, Any],
    places: Collection[tuple[str, int]],
    level: confluent_kafka.IsolationLevel,
) -> dict[tuple[str, int], int]:
    """Where partitions end, asked for until they have leaders.

    A client that has found no leader does not look for one again, so each time another one asks.
    """
    kafka_admin: Any = confluent_kafka.admin
    latest = {
        confluent_kafka.TopicPartition(*place): kafka_admin.OffsetSpec.latest() for place in places
    }
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        admin = AdminClient(settings)
        asked = admin.list_offsets(dict(latest), isolation_level=level, request_timeout=_ANSWER_S)
        try:
            return {(p.topic, p.partition): found.result().offset for p, found in asked.items()}
        except confluent_kafka.KafkaException:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.1)


def read(
    bootstrap: str, topic: str, isolation: Isolation = "read_committed", **more: str
) -> list[Record]:
    """Read one topic, as `read_all` does."""
    return read_all(bootstrap, [topic], isolation, **more)[topic]


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """The group's committed offset of each partition; a partition without one is left out."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [confluent_kafka.TopicPartition(topic, p) for p in _partitions(consumer, topic)]
        found = consumer.committed(places, timeout=PATIENCE_S)
        return {tp.partition: tp.offset for tp in found if tp.offset >= 0}
    finally:
        consumer.close()


def committed_metadata(bootstrap: str, group: str, topic: str) -> dict[int, str]:
    """What the group's members committed beside each offset."""
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answer = admin.list_consumer_group_offsets([request])[group].result(PATIENCE_S)
    return {p.partition: p.metadata or "" for p in answer.topic_partitions if p.topic == topic}


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The high watermark of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        places = [
            confluent_kafka.TopicPartition(topic, p) for p in _led_partitions(consumer, topic)
        ]
        return {
            p.partition: consumer.get_watermark_offsets(p, timeout=PATIENCE_S)[1] for p in places
        }
    finally:
        consumer.close()


def members(bootstrap: str, group: str) -> set[str]:
    """The identities of a group's members; empty while the group rebalances."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    stable = found.state == confluent_kafka.ConsumerGroupState.STABLE
    return {member.group_instance_id for member in found.members} if stable else set()


def client_ids(bootstrap: str, group: str) -> dict[str, str]:
    """The client ids of a group's members, by identity."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return {member.group_instance_id: member.client_id for member in found.members}


def set_committed(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Move the offsets of a group without members, as its operator would do it."""
    places = [confluent_kafka.TopicPartition(topic, p, offset) for p, offset in offsets.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    request = confluent_kafka.ConsumerGroupTopicPartitions(group, places)
    answer = admin.alter_consumer_group_offsets([request])[group].result(PATIENCE_S)
    assert all(place.error is None for place in answer.topic_partitions)
