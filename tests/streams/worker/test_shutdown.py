"""An application's part in a shutdown of all: who gives the word is not ended by it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import FatalClientError, ShutDownError
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.protocols import Offsets
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams.worker import shutdown
from headrace.streams.worker.shutdown import Shutdown

CONFIG = StreamsConfig.parse({"application.id": "shop", "bootstrap.servers": "nowhere:1"})
WORD = ShutDownError("shop", "db-3", 41, "RecordError", "in-0 offset 7 cannot be read")


class Group:
    """The group of the word, where it can be written or not."""

    def __init__(self, failure: FatalClientError | None = None) -> None:
        self.failure = failure
        self.groups: list[str] = []

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        if self.failure is not None:
            raise self.failure
        self.groups.append(group)


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
        monkeypatch.setattr(shutdown, "MemberlessGroup", lambda *_, **__: group)
        self.log = EventLog()
        self.shutdown = Shutdown(CONFIG, (), clock=SystemClock(), log=self.log)
        self.stops = 0
        brokers: Any = None
        self.hear = self.shutdown.watched(brokers, self._stop)._on_request

    def _stop(self) -> None:
        self.stops += 1


def test_a_word_that_is_heard_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Group())
    scene.hear(WORD)
    assert scene.stops == 1
    with pytest.raises(ShutDownError, match="in-0 offset 7"):
        scene.shutdown.check()


def test_who_gives_the_word_does_not_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for while the worker closes."""
    group = Group()
    scene = Scene(monkeypatch, group)
    assert scene.shutdown.request(ZeroDivisionError())
    assert group.groups == ["shop.shutdown"]
    scene.hear(WORD)
    assert scene.stops == 0
    assert [event["event"] for event in scene.log.events] == ["shutdown_requested"]
    scene.shutdown.check()


def test_a_word_that_cannot_be_written_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Group(FatalClientError("the brokers are gone")))
    assert not scene.shutdown.request(ZeroDivisionError())
    assert [event["event"] for event in scene.log.events] == ["shutdown_request_failed"]
