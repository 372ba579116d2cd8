"""What the live producers promise beyond the client's own promises."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ProducerFencedError, RecordRefusedError
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.topics import Topics

Producer = TransactionalProducer | PlainProducer


def config_of(topics: Topics, guarantee: str) -> StreamsConfig:
    return StreamsConfig.parse(
        {
            "application.id": "producers",
            "bootstrap.servers": topics.bootstrap,
            "processing.guarantee": guarantee,
        }
    )


@pytest.fixture(params=["exactly_once_v2", "at_least_once"])
def producer(request: pytest.FixtureRequest, topics: Topics) -> Iterator[Producer]:
    """A producer whose transaction has begun, where it has transactions."""
    config = config_of(topics, request.param)
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


def refuse_one(producer: Producer, topics: Topics) -> str:
    """Send a record that the topic does not take; returns the topic."""
    topic = topics.create("out", config={"max.message.bytes": "500"})
    producer.send(topic, random.Random(0).randbytes(1000), b"k", 0, 1, None)
    return topic


def test_what_a_broker_refused_is_told_by_the_next_call_whichever_it_is(
    producer: Producer, topics: Topics
) -> None:
    """A broken transaction refuses sends without saying why; the reason must not be lost."""
    topic = refuse_one(producer, topics)
    producer._client.flush(30)

    def go_on() -> None:
        producer.send(topic, b"v", b"k", 0, 1, None)
        producer.apply_backpressure(1)

    with pytest.raises(RecordRefusedError, match=f"max.message.bytes of {topic}") as caught:
        go_on()
    assert (caught.value.topic, caught.value.partition) == (topic, 0)


def test_what_a_broker_refused_is_told_by_the_commit(producer: Producer, topics: Topics) -> None:
    topic = refuse_one(producer, topics)
    with pytest.raises(RecordRefusedError, match=f"max.message.bytes of {topic}"):
        producer.commit()
    producer.abort()


def fenced(topics: Topics) -> tuple[TransactionalProducer, str]:
    """A producer with an open transaction, after another one of the same identity began."""
    config = config_of(topics, "exactly_once_v2").producer_config(topics.name("id"))
    topic = topics.create("out")
    old, new = (TransactionalProducer(config, timeout_s=30) for _ in range(2))
    old.init()
    old.begin()
    old.send(topic, b"v", b"k", 0, 1, None)
    old._client.flush(30)
    new.init()
    new.close()
    return old, topic


CALLS: dict[str, Callable[[TransactionalProducer, str], object]] = {
    "commit": lambda producer, _: producer.commit(),
    "abort": lambda producer, _: producer.abort(),
    "send": lambda producer, topic: producer.send(topic, b"v", b"k", 0, 1, None),
    "pressure": lambda producer, _: producer.apply_backpressure(1),
    "changelog": lambda producer, topic: producer.send_changelog(
        TopicPartition(topic, 0), [(b"k", b"v", 1)]
    ),
}


def has_failed(producer: TransactionalProducer) -> bool:
    try:
        producer._client.begin_transaction()
    except KafkaException as error:
        return error.args[0].fatal()
    raise AssertionError("no transaction was open")


@pytest.mark.parametrize("call", CALLS)
def test_a_fenced_producer_says_so_in_whichever_call_meets_it(call: str, topics: Topics) -> None:
    """Fencing is told by the call that comes first, and by a callback that any call may serve."""
    old, topic = fenced(topics)
    if call in ("send", "pressure", "changelog"):
        # These tell only what the client has heard, so let it hear.
        old.send(topic, b"v", b"k", 0, 1, None)
        wait_until(lambda: has_failed(old), what="the client hears of it")
    with pytest.raises(ProducerFencedError, match="fenced"):
        CALLS[call](old, topic)
    old.close()
