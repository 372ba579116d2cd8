"""The word to all: what is written is heard by those that run, and by nobody who starts later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from headrace.streams.errors import FatalClientError, ShutDownError
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.worker.shutdown import ShutdownRequest, ShutdownWatch, write_request

PLACES = [TopicPartition("in", 0), TopicPartition("more", 0)]
NOTE = ShutdownRequest("db-3", 41, "RecordError", "in-0 offset 7 cannot be read")


class Clock:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass


class Group:
    """The group of the word, as a test has it."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.failing: list[Exception] = []
        self.closed = False

    def committed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        if self.failing:
            raise self.failing.pop(0)
        return {place: self.offsets[place] for place in places if place in self.offsets}

    def close(self) -> None:
        self.closed = True

    def write(self, now_ms: int, note: ShutdownRequest = NOTE) -> None:
        write_request(note, PLACES, set_offsets=self.offsets.update, clock=Clock(now_ms))


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, /, **fields: Any) -> None:
        self.events.append(event)

    info = error = warning


class Scene:
    """A watch that looks as often as the test has steps between the looks."""

    def __init__(self, group: Group, *between: Any) -> None:
        self.group, self.log = group, Log()
        self.heard: list[ShutDownError] = []
        steps = list(between)

        def wait(_: float) -> bool:
            if not steps:
                return True
            steps.pop(0)()
            return False

        ShutdownWatch(
            "shop",
            lambda: group,
            PLACES,
            on_request=self.heard.append,
            log=self.log,
            wait=wait,
        ).watch()
        assert group.closed


def nothing() -> None:
    """Nothing happens between two looks."""


def test_a_word_that_comes_is_heard_once() -> None:
    group = Group()
    scene = Scene(group, nothing, lambda: group.write(100), nothing)
    (error,) = scene.heard
    assert "db-3 (process 41)" in str(error)
    assert "in-0 offset 7 cannot be read" in str(error)


def test_a_word_of_before_the_start_is_over() -> None:
    group = Group()
    group.write(100)
    assert Scene(group, nothing, nothing).heard == []


def test_a_later_word_is_heard_over_an_earlier_one() -> None:
    group = Group()
    group.write(100)
    assert len(Scene(group, lambda: group.write(101)).heard) == 1


def test_a_word_is_heard_after_an_earlier_one_has_expired() -> None:
    group = Group()
    group.write(100)
    steps = (group.offsets.clear, lambda: group.write(5_000))
    assert len(Scene(group, *steps).heard) == 1


def test_brokers_that_are_away_for_a_while_hide_no_word() -> None:
    """A look that fails at first is no look at nothing: a word of before is over still."""
    group = Group()
    group.write(100)
    group.failing = [FatalClientError("away")]
    assert Scene(group, nothing, nothing).heard == []
    group.failing = []

    def away() -> None:
        group.failing = [FatalClientError("away")]

    assert len(Scene(group, away, lambda: group.write(200)).heard) == 1


def test_a_right_that_is_missing_is_said_and_the_worker_goes_on() -> None:
    group = Group()
    group.failing = [GroupDeniedError("it lacks Read")]
    scene = Scene(group, nothing)
    assert scene.log.events == ["shutdown_requests_unreadable"]
    assert scene.heard == []


def test_a_text_of_another_origin_is_no_word() -> None:
    group = Group()
    other = {PLACES[0]: CommittedOffset(700, "somebody's own")}
    assert Scene(group, lambda: group.offsets.update(other)).heard == []


@pytest.mark.parametrize("reason", ["", "ä" * 10_000, "\N{WATER WAVE}" * 10_000])
def test_a_word_is_small_enough_for_an_offset(reason: str) -> None:
    """Brokers take 4,096 bytes unless they are told otherwise."""
    note = ShutdownRequest.of("RecordError", reason)
    assert len(note.encode()) < 4_096
    assert ShutdownRequest.decode(note.encode()) == note
