"""The cluster in memory against a real one: the same calls, and the same to be seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ProducerFencedError, StreamsError
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.protocols import (
    AdminClient,
    CommittedOffset,
    Consumer,
    Producer,
    TopicPartition,
)
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.testing.memory_clients import (
    MemoryAdmin,
    MemoryConsumer,
    MemoryTransactionalProducer,
)
from headrace.streams.testing.memory_cluster import MemoryCluster
from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

QUIET_S = 0.3
"""How long nothing must come to a live reader that is where the broker says that the end is."""

Observed = list[Any]


@dataclass
class Kit:
    """One topic of one partition on a cluster, and its clients."""

    topic: str
    admin: AdminClient
    make_producer: Callable[[], Producer]
    make_consumer: Callable[[bool], Consumer]
    """Takes whether records of open and aborted transactions are left out."""
    end_of: Callable[[bool], int]
    """Where a reader ends that leaves out those records, or not; 0 where it is there at once."""
    quiet_s: float

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def producer(self) -> Producer:
        producer = self.make_producer()
        producer.init()
        return producer

    def read(self, *, committed: bool = True, offset: int = 0) -> Observed:
        """Everything from an offset on, and the position behind it."""
        consumer = self.make_consumer(committed)
        consumer.add({self.place: offset})
        found: Observed = []
        end = self.end_of(committed)
        begun = quiet_since = time.monotonic()
        while True:
            for records in consumer.poll(100, min(0.1, self.quiet_s)).values():
                found += [(m.offset(), m.key(), m.value(), m.headers()) for m in records]
                quiet_since = time.monotonic()
            position = consumer.positions([self.place]).get(self.place)
            is_there = end <= offset or position == end or time.monotonic() > begun + PATIENCE_S
            if is_there and time.monotonic() - quiet_since >= self.quiet_s:
                break
        position = consumer.positions([self.place]).get(self.place)
        consumer.close(leave=False)
        return [*found, ("position", position)]

    def ends(self) -> Observed:
        return [self.admin.start_offsets([self.place]), self.admin.end_offsets([self.place])]


def write(kit: Kit, producer: Producer, *values: bytes) -> None:
    for value in values:
        producer.send(kit.topic, value, b"k", 0, 5, [("h", b"1")])


def flushed(kit: Kit, producer: Producer, end: int) -> None:
    """Wait until what was sent is on the broker."""
    deadline = time.monotonic() + 20
    while kit.admin.end_offsets([kit.place])[kit.place] < end:
        producer.apply_backpressure(0)
        assert time.monotonic() < deadline, "records do not arrive"
        time.sleep(0.01)


def settled(kit: Kit, end: int) -> None:
    """Wait for the marker of a transaction: the broker writes it after it has answered."""
    deadline = time.monotonic() + PATIENCE_S
    while kit.admin.end_offsets([kit.place])[kit.place] < end:
        assert time.monotonic() < deadline, "the transaction does not end"
        time.sleep(0.01)


def commits_and_aborts(kit: Kit) -> Observed:
    """What is read between and behind the ends of transactions."""
    seen: Observed = []
    producer = kit.producer()
    producer.begin()
    write(kit, producer, b"1", b"2")
    flushed(kit, producer, 2)
    seen += [kit.read(), kit.read(committed=False), kit.ends()]
    producer.commit()
    settled(kit, 3)
    seen += [kit.read(), kit.read(committed=False), kit.ends()]
    producer.begin()
    write(kit, producer, b"void")
    flushed(kit, producer, 4)
    producer.abort()
    settled(kit, 5)
    seen += [kit.read(), kit.read(committed=False), kit.ends()]
    seen += [kit.read(offset=2), kit.read(offset=3), kit.read(offset=4)]
    producer.close()
    return seen


def successors(kit: Kit) -> Observed:
    """What becomes of an open transaction when its identity is taken over."""
    seen: Observed = []
    first = kit.producer()
    first.begin()
    write(kit, first, b"left open")
    flushed(kit, first, 1)
    second = kit.producer()
    seen += [kit.read(), kit.read(committed=False), kit.ends()]
    second.begin()
    write(kit, second, b"new")
    second.commit()
    settled(kit, 4)
    seen += [kit.read()]
    error: StreamsError | None = None
    try:
        write(kit, first, b"zombie")
        first.commit()
    except StreamsError as caught:
        error = caught
    seen += [isinstance(error, ProducerFencedError), kit.read()]
    first.close()
    second.close()
    return seen


def offsets(kit: Kit) -> Observed:
    """What a group's offsets are before, within and after transactions on them."""
    seen: Observed = []
    consumer, producer = kit.make_consumer(True), kit.producer()

    def committed(*, settled: bool) -> Any:
        deadline = time.monotonic() + 10
        while True:
            found = consumer.committed([kit.place], 1.0)
            if (found is not None) is settled or time.monotonic() > deadline:
                return found if found is None else found[kit.place]

    seen.append(committed(settled=True))
    producer.begin()
    producer.send_offsets({kit.place: CommittedOffset(7, "meta")}, consumer.group_metadata())
    seen.append(committed(settled=False))
    producer.abort()
    seen.append(committed(settled=True))
    producer.begin()
    producer.send_offsets({kit.place: CommittedOffset(8, "more")}, consumer.group_metadata())
    producer.commit()
    seen.append(committed(settled=True))
    consumer.commit({kit.place: CommittedOffset(3)})
    seen.append(committed(settled=True))
    producer.close()
    consumer.close(leave=False)
    return seen


def changelogs(kit: Kit) -> Observed:
    """Where a producer says that a changelog ends."""
    producer = kit.producer()
    producer.begin()
    producer.send_changelog(kit.place, [(b"a", b"1", 5), (b"b", None, 6)])
    producer.commit()
    deadline = time.monotonic() + 10
    found: Any = None
    while found is None and time.monotonic() < deadline:
        try:
            found = producer.changelog_ends([kit.place])[kit.place]
        except KeyError:
            time.sleep(0.05)
    settled(kit, 3)
    seen = [found, kit.read(), kit.ends()]
    producer.close()
    return seen


def deletions(kit: Kit) -> Observed:
    """What is left after records were deleted."""
    producer = kit.producer()
    producer.begin()
    write(kit, producer, b"1", b"2", b"3")
    producer.commit()
    settled(kit, 4)
    kit.admin.delete_records({kit.place: 2})
    producer.close()
    return [kit.ends(), kit.read(offset=2)]


SCENARIOS = [commits_and_aborts, successors, offsets, changelogs, deletions]


def memory_kit() -> Kit:
    cluster = MemoryCluster()
    cluster.create("t")
    return Kit(
        "t",
        MemoryAdmin(cluster),
        lambda: MemoryTransactionalProducer(cluster, "id"),
        lambda committed: MemoryConsumer(cluster, group="g", committed=committed),
        lambda committed: 0,
        quiet_s=0.0,
    )


def end(bootstrap: str, topic: str, *, committed: bool) -> int:
    """The last stable offset, or the high watermark."""
    reader = kafka.reader(bootstrap, "read_committed" if committed else "read_uncommitted")
    try:
        place = confluent_kafka.TopicPartition(topic, 0)
        return int(reader.get_watermark_offsets(place, timeout=PATIENCE_S)[1])
    finally:
        reader.close()


@pytest.fixture
def live_kit(broker: str, topics: Topics) -> Kit:
    topic = topics.create()
    config = StreamsConfig.parse(
        {
            "application.id": topics.name("app"),
            "bootstrap.servers": broker,
            "processing.guarantee": "exactly_once_v2",
        }
    )

    def consumer(committed: bool) -> Consumer:
        chosen = config.consumer_config("only")
        if not committed:
            chosen["isolation.level"] = "read_uncommitted"
        return LiveConsumer(chosen, timeout_s=PATIENCE_S)

    return Kit(
        topic,
        LiveAdmin(config.admin_config(), timeout_s=PATIENCE_S),
        lambda: TransactionalProducer(config.producer_config(topic), timeout_s=PATIENCE_S),
        consumer,
        lambda committed: end(broker, topic, committed=committed),
        quiet_s=QUIET_S,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_seen_is_what_a_real_cluster_shows(
    scenario: Callable[[Kit], Observed], live_kit: Kit
) -> None:
    in_memory, real = scenario(memory_kit()), scenario(live_kit)
    named = str(real).replace(live_kit.topic, "t")
    assert named == str(in_memory)
