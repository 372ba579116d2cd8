"""A stop while no broker can be reached: calls that repeat are given up, in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.streams.errors import StopRequestedError
from headrace.streams.kafka.clients import BrokerState
from headrace.streams.kafka.connectivity import STOP_PATIENCE_S, BrokerMonitor
from headrace.streams.kafka.protocols import CommittedOffset
from headrace.streams.testing.memory_worker import ManualClock
from tests.streams.kafka import test_consumer, test_producer
from tests.streams.kafka.test_producer import ROWS, rows

TIMED_OUT = KafkaError(KafkaError._TIMED_OUT)


@dataclass
class Gone(BrokerState):
    """No broker is there, and a stop was asked for at a time of the clock."""

    clock: ManualClock
    stopped_at_s: float = 3.0

    def __post_init__(self) -> None:
        super().__init__()

    def is_stop_overdue(self) -> bool:
        return self.clock.monotonic_s() >= self.stopped_at_s + STOP_PATIENCE_S


def contact_at(clock: ManualClock) -> tuple[BrokerMonitor, list[bool]]:
    """One whose brokers are gone; what is put into the list is a stop."""
    stopped: list[bool] = []
    brokers = BrokerMonitor({}, stopping=lambda: bool(stopped), clock=clock)
    brokers._is_lost = True
    return brokers, stopped


def test_brokers_are_given_up_so_long_after_the_stop_and_not_before_it() -> None:
    clock = ManualClock(0)
    brokers, stopped = contact_at(clock)
    clock.sleep(100)
    assert not brokers.is_stop_overdue()
    stopped.append(True)
    assert not brokers.is_stop_overdue()
    clock.sleep(STOP_PATIENCE_S - 0.1)
    assert not brokers.is_stop_overdue()
    clock.sleep(0.2)
    assert brokers.is_stop_overdue()


def test_brokers_that_come_back_are_waited_for_again() -> None:
    clock = ManualClock(0)
    brokers, stopped = contact_at(clock)
    stopped.append(True)
    assert not brokers.is_stop_overdue()
    clock.sleep(2 * STOP_PATIENCE_S)
    brokers._is_lost = False
    assert not brokers.is_stop_overdue()
    brokers._is_lost = True
    assert not brokers.is_stop_overdue()


def sends_offsets(bench: test_producer.Bench, producer: Any) -> None:
    bench.client.send_offsets_to_transaction = lambda *_: bench.client._call("offsets")  # type: ignore[attr-defined]
    bench.client.fails["offsets"] = TIMED_OUT
    producer.send_offsets({ROWS: CommittedOffset(1)}, None)


def finds_no_room(bench: test_producer.Bench, producer: Any) -> None:
    bench.client.full = 1_000_000
    producer.send("out", b"v", b"k", -1, 5, None)


def waits_under_pressure(bench: test_producer.Bench, producer: Any) -> None:
    bench.client.waiting = 1_000_000
    producer.apply_backpressure(1_000_000)


def settles(bench: test_producer.Bench, producer: Any) -> None:
    bench.client.waiting = 1
    producer.send_changelog(ROWS, rows(5))
    producer.flush()


Wait = Callable[[test_producer.Bench, Any], None]


@pytest.mark.parametrize(
    ("kind", "wait"),
    [
        ("transactional", sends_offsets),
        ("transactional", finds_no_room),
        ("transactional", waits_under_pressure),
        ("plain", finds_no_room),
        ("plain", waits_under_pressure),
        ("plain", settles),
    ],
)
def test_a_producer_waits_no_longer(kind: str, wait: Wait) -> None:
    bench = test_producer.Bench()
    brokers = Gone(bench.clock)
    producer = getattr(bench, kind)(brokers=brokers, waiting=lambda: True)
    producer.begin()
    with pytest.raises(StopRequestedError, match="stopped while waiting for"):
        wait(bench, producer)
    assert 8 <= bench.clock.monotonic_s() <= 9.1


def test_a_transaction_is_left_open_for_its_successor_and_not_waited_for() -> None:
    bench = test_producer.Bench()
    producer = bench.transactional(brokers=Gone(bench.clock), waiting=lambda: True)
    producer.begin()
    bench.clock.sleep(20)
    producer.abort()
    producer.close()
    assert bench.calls == ["purge"]


def test_an_abort_that_repeats_is_given_up() -> None:
    bench = test_producer.Bench()
    producer = bench.transactional(brokers=Gone(bench.clock), waiting=lambda: True)
    producer.begin()
    bench.client.fails["abort_transaction"] = TIMED_OUT
    with pytest.raises(StopRequestedError):
        producer.abort()
    assert 8 <= bench.clock.monotonic_s() <= 9.1


def test_a_commit_of_offsets_is_given_up() -> None:
    bench = test_consumer.Bench()
    bench.consumer._brokers = Gone(bench.clock)
    bench.consumer._waiting = lambda: True
    bench.client.answers = [[test_consumer.Refused(*test_consumer.HERE)]] * 10_000
    with pytest.raises(StopRequestedError, match="offset commit"):
        bench.consumer.commit({test_consumer.HERE: CommittedOffset(1)})
    assert 8 <= bench.clock.monotonic_s() <= 9.1
