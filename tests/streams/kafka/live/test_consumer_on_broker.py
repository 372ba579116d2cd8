"""What the live consumer promises beyond the client's own promises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MemberFencedError, TaskMigratedError
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.topics import Topics

Make = Callable[[str], LiveConsumer]


@pytest.fixture
def member(topics: Topics) -> Iterator[Make]:
    """Makes members of one group, by their identity."""
    config = StreamsConfig.parse(
        {
            "application.id": topics.name("group"),
            "bootstrap.servers": topics.bootstrap,
            "consumer.session.timeout.ms": 6_000,
        }
    )
    made = []

    def make(identity: str) -> LiveConsumer:
        made.append(LiveConsumer(config.consumer_config(identity), timeout_s=30))
        return made[-1]

    make.group = config.application_id  # type: ignore[attr-defined]
    yield make
    for consumer in made:
        # Also of a client that met a fatal error.
        consumer.close(leave=True)


class Silent:
    """Reads nothing of what it is assigned."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned |= set(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned -= set(partitions)

    on_lost = on_revoked


def test_a_member_whose_identity_another_one_takes_is_told_so_and_can_join_anew(
    member: Make, topics: Topics
) -> None:
    """The client says so once, as if it were a message, and is silent for ever after."""
    topic = topics.create("in")
    first, second = member("w"), member("w")
    listener = Silent()
    first.subscribe([topic], listener)
    wait_until(lambda: first.poll(1, 0.1) == {} and bool(listener.assigned), what="assigned")
    second.subscribe([topic], Silent())

    def fenced(old: LiveConsumer, new: LiveConsumer) -> bool:
        new.poll(1, 0.1)
        try:
            old.poll(1, 0.1)
        except MemberFencedError as error:
            return "fenced" in str(error)
        return False

    first.add({TopicPartition(topic, 0): 0})
    wait_until(lambda: fenced(first, second), what="the first is fenced")
    first.remove([TopicPartition(topic, 0)])
    listener.assigned.clear()
    first.rejoin()
    wait_until(lambda: fenced(second, first), what="the second is fenced in its turn")
    wait_until(lambda: first.poll(1, 0.1) == {} and bool(listener.assigned), what="assigned again")


def test_a_commit_of_a_fenced_member_asks_for_a_new_one_as_a_poll_does(
    member: Make, topics: Topics
) -> None:
    """The client answers that something is fatal, no more; the reason comes as a message."""
    topic = topics.create("in")
    first, second = member("w"), member("w")
    listener = Silent()
    first.subscribe([topic], listener)
    wait_until(lambda: first.poll(1, 0.1) == {} and bool(listener.assigned), what="assigned")
    taken = Silent()
    second.subscribe([topic], taken)
    wait_until(lambda: second.poll(1, 0.1) == {} and bool(taken.assigned), what="taken over")

    def refused() -> type[Exception] | None:
        try:
            first.commit({TopicPartition(topic, 0): CommittedOffset(1)})
        except (MemberFencedError, TaskMigratedError) as error:
            return type(error)
        return None

    wait_until(lambda: refused() is MemberFencedError, what="the commit says that it is fenced")


@pytest.mark.parametrize("reads", [True, False])
def test_a_member_that_is_closed_while_it_joins_leaves_nothing_behind(
    member: Make, topics: Topics, reads: bool
) -> None:
    """The group lets nobody in before the others have joined again, and a leave is void before."""
    topic = topics.create("in", partitions=2)
    first, second = member("w-0"), member("w-1")
    listener, closed = Silent(), Silent()
    first.subscribe([topic], listener)
    wait_until(lambda: first.poll(1, 0.1) == {} and bool(listener.assigned), what="assigned")
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})

    def identities() -> set[str | None]:
        group = member.group  # type: ignore[attr-defined]
        found = admin.describe_consumer_groups([group])[group].result(30)
        return {one.group_instance_id for one in found.members}

    second.subscribe([topic], closed)
    wait_until(lambda: len(identities()) == 2, what="the second joins")
    assert not second.member_id(), "it has joined already; nothing is tested"
    if reads:
        second.poll(1, 0.1)
    closing = threading.Thread(target=lambda: second.close(leave=True))
    closing.start()
    wait_until(lambda: first.poll(1, 0.1) == {} and not closing.is_alive(), what="closed")
    assert {identity for identity in identities() if identity and "w-1" in identity} == set()
    assert closed.assigned == set(), "partitions for a member that was closed"


def test_positions_begin_anew_when_a_partition_is_added_again(member: Make, topics: Topics) -> None:
    """A position of before would commit records as processed that are still to be read."""
    topic = topics.create("in")
    kafka.write(topics.bootstrap, topic, [(b"k", b"v")] * 100)
    place = TopicPartition(topic, 0)
    consumer = member("w")
    for _ in range(5):
        consumer.add({place: 0})
        wait_until(lambda: bool(consumer.poll(100, 0.1)), what="records")
        assert consumer.positions([place])[place] > 0
        consumer.remove([place])
        consumer.add({place: 0})
        with pytest.raises(KafkaException, match="is already part of the current assignment"):
            consumer.add({place: 0})
        assert consumer.positions([place]).get(place, 0) == 0
        consumer.remove([place])


class Positioned(Silent):
    """Notes in its last callback what a commit there would take for processed."""

    def __init__(self, consumer: LiveConsumer) -> None:
        super().__init__()
        self.said: list[dict[TopicPartition, int]] = []
        self._consumer = consumer

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.said.append(dict(self._consumer.positions(list(partitions))))
        super().on_revoked(partitions)


def test_no_last_callback_passes_records_that_the_client_drops_when_it_leaves(
    member: Make, topics: Topics
) -> None:
    """A client that closes drops the records that it has, and moves behind their marker."""
    topic = topics.create("in", partitions=2)
    places = [TopicPartition(topic, n) for n in range(2)]
    consumer = member("w")
    listener = Positioned(consumer)
    consumer.subscribe([topic], listener)
    wait_until(lambda: consumer.poll(1, 0.1) == {} and len(listener.assigned) == 2, what="assigned")
    consumer.add(dict.fromkeys(places, 0))
    kafka.write_transaction(topics.bootstrap, topic, [0, 0, 0, 1, 1, 1])
    wait_until(lambda: all(consumer.lag(place, 0) == 4 for place in places), what="all is fetched")
    consumer.close(leave=True)
    assert listener.said, "no last callback"
    for place in places:
        assert listener.said[-1].get(place, 0) == 0, "records that nobody has seen are passed"


def test_a_partition_is_not_held_up_for_long_by_others_that_are_empty(topics: Topics) -> None:
    """A broker answers one request at a time, and waits that long for records of empty topics."""
    empty, full = (TopicPartition(topics.create(name), 0) for name in ("empty", "full"))
    kafka.write(topics.bootstrap, full.topic, [(b"k", b"v")])

    def waited_s(**settings: object) -> float:
        known = {"application.id": topics.name("group"), "bootstrap.servers": topics.bootstrap}
        config = StreamsConfig.parse({**known, **settings})
        consumer = LiveConsumer(config.consumer_config("w"), timeout_s=30)
        try:
            # The first request is out with the answer to one before it.
            consumer.add({empty: 0})
            wait_until(lambda: consumer.lag(empty, 0) is not None, what="the empty topic is read")
            consumer.poll(1, 0.02)
            begun_s = time.monotonic()
            consumer.add({full: 0})
            wait_until(lambda: bool(consumer.poll(1, 0.01)), what="a record")
            return time.monotonic() - begun_s
        finally:
            consumer.close(leave=True)

    long_s = waited_s(**{"consumer.fetch.wait.max.ms": 2_000})
    usual_s = min(waited_s() for _ in range(2))
    assert usual_s < long_s / 2, (usual_s, long_s)
