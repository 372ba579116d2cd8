"""A single broker that is gone is named once, and again when it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from headrace.streams.kafka.connectivity import UnreachableBrokers
from headrace.streams.testing.memory_worker import ManualClock
from tests.support.processes import wait_until

GONE = "b:9092"


class Cluster:
    """Brokers that answer or do not, and a clock that goes on by two seconds with each question."""

    def __init__(self) -> None:
        self.gone = {GONE}
        self.all_gone = False
        self.asked: list[str] = []
        self.clock = ManualClock(0)
        self.ended = threading.Event()
        self.log: list[Any] = []
        self.absent = UnreachableBrokers(
            warn=partial(self._keep, "warning"),
            info=partial(self._keep, "info"),
            probe=self._probe,
            all_unreachable=lambda: self.all_gone,
            ended=self.ended,
            monotonic_s=self.clock.monotonic_s,
        )

    def _keep(self, level: str, event: str, *, broker: str, **_: Any) -> None:
        self.log.append((level, event, broker))

    def _probe(self, address: str) -> Callable[[], bool]:
        def answers() -> bool:
            self.asked.append(address)
            self.clock.pass_ms(2_000)
            return address not in self.gone

        return answers


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.ended.set()
    wait_until(lambda: not looking(), what="the end of all looks")


def looking() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "headrace-broker"]


def test_a_broker_that_is_gone_is_named_once_and_when_it_is_back(cluster: Cluster) -> None:
    cluster.absent.check(GONE, "refused")
    cluster.absent.check(GONE, "refused again")
    assert len(looking()) == 1
    wait_until(lambda: cluster.log == [("warning", "broker_not_reached", GONE)], what="its name")
    cluster.gone.clear()
    wait_until(lambda: len(cluster.log) == 2, what="its return")
    assert cluster.log[1] == ("info", "broker_reached", GONE)
    wait_until(lambda: not looking(), what="the end of the look")
    cluster.gone.add(GONE)
    cluster.absent.check(GONE, "refused")
    wait_until(lambda: len(cluster.log) == 3, what="its name again")


def test_a_broker_that_answers_is_not_spoken_of(cluster: Cluster) -> None:
    """Connections end, and others begin."""
    cluster.absent.check("a:9092", "disconnected")
    wait_until(lambda: not looking(), what="the end of the look")
    assert (cluster.asked, cluster.log) == (["a:9092"], [])


def test_where_all_are_gone_that_is_what_is_said(cluster: Cluster) -> None:
    cluster.all_gone = True
    cluster.absent.check(GONE, "refused")
    wait_until(lambda: not looking(), what="the end of the look")
    assert cluster.log == []


def test_nobody_looks_any_more_once_it_has_ended(cluster: Cluster) -> None:
    cluster.absent.check(GONE, "refused")
    cluster.ended.set()
    wait_until(lambda: not looking(), what="the end of the look")
    cluster.absent.check(GONE, "refused")
    assert not looking()
