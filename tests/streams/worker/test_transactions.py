"""When a producer is replaced, and when the worker must stop instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.streams.errors import (
    AbortableError,
    FatalClientError,
    IdentityError,
    OutcomeUnknownError,
    ProducerFencedError,
    StreamsError,
)
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.streams.worker.transactions import FENCED_AGAIN_S, Transactions

TIMEOUT_S = 10.0
UNKNOWN, FENCED = OutcomeUnknownError("timed out"), ProducerFencedError("fenced")


@dataclass
class Scripted:
    """A producer of which only the calls and their order matter."""

    calls: list[str]
    name: int
    fails: dict[str, StreamsError] = field(default_factory=dict)
    abandoned_clients: int = 0

    def __getattr__(self, call: str) -> Any:
        def called() -> None:
            self.calls.append(f"{call} {self.name}")
            if call in self.fails:
                raise self.fails[call]

        return called


@dataclass
class Bench:
    clock: ManualClock = field(default_factory=lambda: ManualClock(0))
    log: EventLog = field(default_factory=EventLog)
    calls: list[str] = field(default_factory=list)
    fails: dict[str, StreamsError] = field(default_factory=dict)
    """What every producer fails with, by call."""
    made: int = 0

    def __post_init__(self) -> None:
        self.transactions = Transactions(
            self.make, timeout_s=TIMEOUT_S, clock=self.clock, probe=self.calls.append, log=self.log
        )

    def make(self) -> Any:
        self.made += 1
        return Scripted(self.calls, self.made, self.fails)


def test_a_transaction_begins_once_until_it_ends() -> None:
    bench = Bench()
    for _ in range(2):
        bench.transactions.begin()
    bench.transactions.ended()
    bench.transactions.begin()
    assert bench.calls == ["begin 1", "transaction_begun"] * 2


def test_a_commit_of_unknown_outcome_makes_a_new_producer_decide_it_before_anything_else() -> None:
    bench = Bench()
    bench.transactions.begin()
    bench.transactions.replace(UNKNOWN)
    assert bench.calls[-2:] == ["close 1", "init 2"]
    bench.transactions.begin()
    assert bench.calls[-2:] == ["begin 2", "transaction_begun"]


def test_clients_that_got_no_identity_are_counted_as_replaced() -> None:
    bench = Bench()
    first = bench.transactions.producer
    first.abandoned_clients = 2
    assert bench.transactions.replaced == 2
    bench.transactions.replace(UNKNOWN, in_doubt=True)
    assert bench.transactions.replaced == 3


def test_outcomes_may_be_unknown_as_often_as_brokers_fail() -> None:
    bench = Bench()
    for _ in range(5):
        bench.transactions.begin()
        bench.transactions.replace(UNKNOWN)
    assert bench.made == 6


def test_fenced_twice_within_a_minute_means_another_worker_with_this_identity() -> None:
    bench = Bench()
    bench.transactions.begin()
    bench.transactions.replace(FENCED)
    bench.clock.sleep(FENCED_AGAIN_S - 1)
    bench.transactions.begin()
    with pytest.raises(IdentityError, match=r"twice within a minute.*unique worker\.id"):
        bench.transactions.replace(FENCED)


def test_fenced_again_after_a_minute_is_a_first_time_again() -> None:
    bench = Bench()
    for _ in range(3):
        bench.transactions.begin()
        bench.transactions.replace(FENCED)
        bench.clock.sleep(FENCED_AGAIN_S)
    assert bench.made == 4


def test_a_transaction_that_the_broker_expired_says_nothing_of_other_workers() -> None:
    """A process that was stopped for longer than transaction.timeout.ms, again and again."""
    bench = Bench()
    for _ in range(3):
        bench.transactions.begin()
        bench.clock.sleep(TIMEOUT_S)
        bench.transactions.replace(FENCED)
    assert bench.made == 4


@pytest.mark.parametrize("error", [UNKNOWN, FENCED, AbortableError("odd"), FatalClientError("odd")])
def test_an_abort_that_fails_makes_a_new_producer(error: StreamsError) -> None:
    bench = Bench(fails={"abort": error})
    bench.transactions.begin()
    assert not bench.transactions.abort()
    assert bench.calls[-3:] == ["abort 1", "close 1", "init 2"]
    assert bench.transactions.abort(), "nothing is open any more"


def test_brokers_that_decide_nothing_stop_the_worker_for_its_supervisor() -> None:
    bench = Bench(fails={"init": UNKNOWN})
    with pytest.raises(FatalClientError, match="do not decide the last transaction"):
        bench.transactions.init()


def test_the_last_abort_may_fail() -> None:
    bench = Bench(fails={"abort": UNKNOWN})
    bench.transactions.begin()
    bench.transactions.abort_finally()
    assert bench.calls[-1] == "abort 1"
