"""How a start finds a broker that answers, whatever a client of its own makes of it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.streams.kafka import connectivity
from headrace.streams.kafka.clients import servers_of
from headrace.streams.kafka.connectivity import BrokerMonitor


class Client:
    """Answers at once, or never."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    def describe_cluster(self, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._answers:
            nodes = [SimpleNamespace(host="two", port=2), SimpleNamespace(host="::1", port=4)]
            future.set_result(SimpleNamespace(nodes=nodes))
        return future

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


def test_a_client_that_hangs_at_a_broker_that_is_gone_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen with one of three nodes just killed: the client tried that one alone, in a busy loop."""
    clients = iter([Client(answers=False), Client(answers=False), Client(answers=True)])
    monkeypatch.setattr(connectivity, "new_admin", lambda *_: next(clients))
    monkeypatch.setattr(connectivity, "_CLIENT_S", 0.05)
    brokers = BrokerMonitor({"bootstrap.servers": "one:1,two:2,three:3"})
    brokers.reach(lambda: False, within_s=20.0)
    assert next(clients, None) is None
    assert brokers.known_brokers() == ("two:2", "[::1]:4")


def test_a_client_gets_brokers_that_were_met_beside_those_of_its_settings() -> None:
    named = {"bootstrap.servers": "one:1, two:2"}
    assert servers_of(named, ()) == ["one:1", "two:2"]
    assert servers_of(named, ("two:2", "[::1]:4")) == ["one:1", "two:2", "[::1]:4"]
    assert servers_of({}, ()) == []
