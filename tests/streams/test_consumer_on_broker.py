"""What the live consumer promises beyond the client's own promises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaException

from streams.clients import TopicPartition
from streams.config import StreamsConfig
from streams.consumer import LiveConsumer
from streams.errors import IdentityError
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

    yield make
    for consumer in made:
        with contextlib.suppress(KafkaException):  # of a client that met a fatal error
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


def test_a_member_whose_identity_another_one_takes_is_told_so(member: Make, topics: Topics) -> None:
    """The client says so once, as if it were a message, and is silent for ever after."""
    topic = topics.create("in")
    old, new = member("w"), member("w")
    listener = Silent()
    old.subscribe([topic], listener)
    wait_until(lambda: old.poll(1, 0.1) == {} and bool(listener.assigned), what="assigned")
    new.subscribe([topic], Silent())

    def poll_on() -> Any:
        new.poll(1, 0.1)
        return old.poll(1, 0.1)

    with pytest.raises(IdentityError, match=r"give each its own worker\.id"):
        wait_until(lambda: poll_on() is None, what="the old member is fenced")


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
        assert consumer.positions([place]).get(place, 0) == 0
        consumer.remove([place])
