"""What a reader of ranges does where brokers do not let it in; the client is a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.read import RangeConsumer, consumer_opener, read_range
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.clients import BrokerState
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.memory_worker import ManualClock

HERE = TopicPartition("in", 0)
SETTINGS = {"sasl.username": "app", "sasl.password": "c4n4ry"}
REFUSED = (
    "sasl_ssl://kafka:9092/bootstrap: SASL authentication error: Authentication failed "
    "(after 300ms in state AUTH_REQ)"
)
UNTRUSTED = (
    "ssl://kafka:9092/bootstrap: SSL handshake failed: certificate verify failed "
    "(after 3ms in state SSL_HANDSHAKE)"
)
CLOSED = (
    "kafka:9092/bootstrap: Connect to ipv4#10.0.0.7:9092 failed: Connection refused "
    "(after 0ms in state CONNECT)"
)


def record(offset: int) -> Message:
    return Message(topic=HERE.topic, partition=HERE.partition, offset=offset)


@dataclass
class Client:
    """Takes a tenth of a second for each poll, and says what it is told to in the first."""

    clock: ManualClock
    say: Callable[[], None]
    due: dict[int, list[Message]] = field(default_factory=dict)
    """What comes with which poll."""
    polls: int = 0
    waiting: list[Message] = field(default_factory=list)

    def incremental_assign(self, _: Any) -> None: ...

    def consume(self, *_: Any) -> list[Message]:
        found, self.waiting = self.waiting, []
        return found

    def poll(self, _: float) -> None:
        self.clock.sleep(0.1)
        self.polls += 1
        if self.polls == 1:
            self.say()
        self.waiting = self.due.get(self.polls, [])

    def position(self, _: Any) -> list[Any]:
        return []

    def close(self) -> None: ...


def read(text: str, due: dict[int, list[Message]] | None = None) -> list[int]:
    """Read two records with a client that says this."""
    clock, heard = ManualClock(0), BrokerState()

    def say() -> None:
        heard.on_error(KafkaError(KafkaError._AUTHENTICATION, text))

    def opened() -> RangeConsumer:
        client: Any = Client(clock, say, due or {})
        return RangeConsumer(
            SETTINGS, timeout_s=20, state=heard, clock=clock, make_client=lambda _: client
        )

    found = read_range(opened, HERE, 0, 2, timeout_s=20, clock=clock)
    offsets = [record.offset() for records in found for record in records]
    assert clock.monotonic_s() < 20
    return offsets


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (REFUSED, "rejects User:app: .*correct sasl.mechanism, sasl.username and"),
        (UNTRUSTED, "certificate of the broker kafka:9092 cannot be verified: .*ssl.ca.location"),
    ],
)
def test_a_reader_that_is_not_let_in_says_so(text: str, said: str) -> None:
    with pytest.raises(AccessError, match=said) as raised:
        read(text)
    assert "c4n4ry" not in str(raised.value)


def test_a_broker_that_is_not_needed_may_refuse_it() -> None:
    assert read(REFUSED, {3: [record(0)], 30: [record(1)]}) == [0, 1]


def test_brokers_that_are_away_are_waited_for() -> None:
    with pytest.raises(BackfillError, match="Check the brokers"):
        read(CLOSED)


def test_readers_of_a_backfill_hear_it() -> None:
    config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "localhost:1"})
    consumer = consumer_opener(config)()
    assert isinstance(consumer, RangeConsumer)
    consumer.close(leave=False)
