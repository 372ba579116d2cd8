"""What the live producers promise beyond the client's own promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streams.clients import TopicPartition
from streams.config import StreamsConfig
from streams.producer import PlainProducer, TransactionalProducer
from tests.support import kafka
from tests.support.topics import Topics

Producer = TransactionalProducer | PlainProducer


@pytest.fixture(params=["exactly_once_v2", "at_least_once"])
def producer(request: pytest.FixtureRequest, topics: Topics) -> Iterator[Producer]:
    """A producer whose transaction has begun, where it has transactions."""
    config = StreamsConfig.parse(
        {
            "application.id": "producers",
            "bootstrap.servers": topics.bootstrap,
            "processing.guarantee": request.param,
        }
    )
    made: Producer
    if config.exactly_once:
        made = TransactionalProducer(config.producer_config(topics.name("id")), timeout_s=30)
    else:
        made = PlainProducer(
            config.producer_config(None),
            timeout_s=30,
            commit_offsets=lambda _: None,
            end_offsets=lambda places: dict.fromkeys(places, 0),
        )
    made.init()
    made.begin()
    yield made
    made.close()


def test_the_first_millisecond_of_1970_does_not_become_now(
    producer: Producer, topics: Topics
) -> None:
    """The client takes the timestamp 0 for none; stream time must not leap by half a century."""
    topic = topics.create("out")
    producer.send(topic, b"v", b"sent", 0, 0, None)
    rows = [(b"first", b"v", 0), (b"last", b"v", 0)]
    producer.send_changelog(TopicPartition(topic, 0), rows)
    producer.commit()
    found = {record.key: record.timestamp for record in kafka.read(topics.bootstrap, topic)}
    assert found == {b"sent": 1, b"first": 1, b"last": 1}
