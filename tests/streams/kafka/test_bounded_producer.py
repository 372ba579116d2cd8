"""Calls that do not return have a time limit."""

from __future__ import annotations

import threading

import confluent_kafka
import pytest

from headrace.streams.errors import OutcomeUnknownError
from headrace.streams.kafka import clients
from headrace.streams.kafka.clients import (
    BoundedConsumer,
    BoundedProducer,
    BrokerState,
    call_with_timeout,
)
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.testing.memory_worker import EventLog

NOWHERE = {
    "bootstrap.servers": "localhost:1",
    "transactional.id": "id",
    "transaction.timeout.ms": 1000,
    "log_level": 0,
}


CONSUMER = {"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0}
FAILURE = "localhost:9092/1: Disconnected: connection closed by peer (after 9ms in state UP)"


class Hanging(confluent_kafka.Producer):
    """A client whose call never comes back, as librdkafka's when the coordinator goes away."""

    def send_offsets_to_transaction(self, *_: object) -> None:
        threading.Event().wait()


class BoundedHanging(BoundedProducer, Hanging):
    """The same, bounded."""


@pytest.mark.slow
def test_a_call_that_never_comes_back_leaves_an_unknown_outcome() -> None:
    """Long before task.timeout.ms: the brokers abort the transaction after its own time-out."""
    producer = TransactionalProducer(NOWHERE, make_client=BoundedHanging, timeout_s=300)
    with pytest.raises(OutcomeUnknownError, match=r"did not return within 2 s"):
        producer.send_offsets({}, object())


@pytest.mark.slow
def test_a_call_is_given_up_sooner_when_a_broker_has_failed_meanwhile() -> None:
    """Another client finds the new coordinator sooner."""
    producer, state = BoundedHanging(NOWHERE), BrokerState(EventLog())
    producer.brokers = state
    failing = threading.Timer(0.5, state.on_log, [3, "FAIL", FAILURE])
    failing.start()
    with pytest.raises(OutcomeUnknownError, match=r"did not return within 3\.5 s"):
        producer.send_offsets_to_transaction([], object(), 60.0)
    failing.join()


class Deadlocked(confluent_kafka.Consumer):
    """A client whose threads wait for each other."""

    def close(self) -> None:
        threading.Event().wait()


class BoundedDeadlocked(BoundedConsumer, Deadlocked):
    """The same, bounded."""


def test_a_consumer_that_never_closes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_CLOSE_S", 0.1)
    log = EventLog()
    monkeypatch.setattr(clients, "get_logger", lambda: log)
    BoundedDeadlocked(CONSUMER).close()
    (logged,) = log.events
    assert logged["event"] == "client_not_closed"
    assert "5476" in logged["reason"]


def test_a_consumer_closes() -> None:
    consumer = BoundedConsumer(CONSUMER)
    consumer.close()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)


def test_what_the_client_says_is_raised_to_the_caller() -> None:
    producer = BoundedProducer(NOWHERE)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"})
    metadata = consumer.consumer_group_metadata()
    offsets = [confluent_kafka.TopicPartition("t", 0, 1)]
    with pytest.raises(confluent_kafka.KafkaException, match="_STATE"):
        producer.send_offsets_to_transaction(offsets, metadata, 1.0)


def test_a_call_that_ends_in_time_is_waited_for() -> None:
    done = threading.Event()
    call_with_timeout(done.set, lambda: 10)
    assert done.is_set()


def test_the_wait_begins_again_with_progress_and_not_only_when_it_has_passed() -> None:
    """Else a call that hangs from the first progress on is given up after twice the time-out."""
    asked: list[bool] = []

    def progressed_once() -> bool:
        asked.append(len(asked) == 0)
        return asked[-1]

    with pytest.raises(OutcomeUnknownError):
        call_with_timeout(threading.Event().wait, lambda: 1.0, made_progress=progressed_once)
    assert len(asked) > 2, "asked once each time the time-out passed"


def test_a_call_that_waits_behind_progress_is_not_given_up() -> None:
    done, asked = threading.Event(), iter(range(100))

    def progresses() -> bool:
        if next(asked) == 4:
            done.set()
        return True

    call_with_timeout(done.wait, lambda: 0.3, made_progress=progresses)
    assert done.is_set()
