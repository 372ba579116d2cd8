"""What a handler of uncaught errors answers is done, and what is none is told where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.errors import ConfigError, ShutDownError, StreamsError
from headrace.streams.worker.restarts import RestartLimits
from headrace.streams.worker.uncaught_errors import UncaughtErrorResponse, UncaughtErrors
from headrace.topology import StreamsBuilder

REPLACE = UncaughtErrorResponse.REPLACE_WORKER
CLIENT = UncaughtErrorResponse.SHUTDOWN_CLIENT
APPLICATION = UncaughtErrorResponse.SHUTDOWN_APPLICATION
SECRET = "payload-of-a-record"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, /, **fields: Any) -> None:
        self.events.append((event, fields))

    warning = error = info

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Scene:
    def __init__(self, handler: Callable[[Exception], Any] | None, **limits: Any) -> None:
        self.clock, self.log = Clock(), Log()
        self.told: list[Exception] = []
        self.can_tell = True
        self.uncaught = UncaughtErrors(
            handler,
            self.tell,
            quotes_records=False,
            clock=self.clock,
            log=self.log,
            limits=RestartLimits(**limits),
        )

    def tell(self, error: Exception) -> bool:
        self.told.append(error)
        return self.can_tell

    def ask(self, error: Exception) -> float:
        return self.uncaught.pause_s(error, started_s=self.clock.now_s)


def test_without_a_handler_the_error_ends_the_application() -> None:
    scene = Scene(None)
    with pytest.raises(ZeroDivisionError):
        scene.ask(ZeroDivisionError())
    assert scene.uncaught.answer is None
    assert scene.told == []


def test_the_handler_is_given_the_error_and_a_worker_is_replaced_after_a_pause_that_grows() -> None:
    given: list[Exception] = []

    def handler(error: Exception) -> UncaughtErrorResponse:
        given.append(error)
        return REPLACE

    scene = Scene(handler, first_s=1.0)
    error = ZeroDivisionError(SECRET)
    assert 0.5 <= scene.ask(error) <= 1.0
    assert 1.0 <= scene.ask(error) <= 2.0
    assert given == [error, error]
    assert scene.log.names.count("worker_replaced") == 2
    assert scene.log.names.count("application_failed") == 2
    assert SECRET not in str(scene.log.events)


def test_a_worker_that_is_replaced_too_often_is_given_up() -> None:
    scene = Scene(lambda _: REPLACE, most=2)
    for _ in range(2):
        scene.ask(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        scene.ask(ZeroDivisionError())
    assert scene.log.names[-1] == "worker_abandoned"


def test_all_are_told_where_the_whole_application_is_to_end() -> None:
    scene = Scene(lambda _: APPLICATION)
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        scene.ask(error)
    assert scene.told == [error]
    quiet = Scene(lambda _: CLIENT)
    with pytest.raises(ZeroDivisionError):
        quiet.ask(error)
    assert quiet.told == []


def test_partitions_are_held_back_for_as_long_as_others_have_to_hear_that_they_end() -> None:
    given: list[Exception] = []

    def handler(error: Exception) -> UncaughtErrorResponse:
        given.append(error)
        return APPLICATION if isinstance(error, ZeroDivisionError) else CLIENT

    scene = Scene(handler)
    error, harmless = ZeroDivisionError(), ValueError()
    assert scene.uncaught.keeps_partitions(error)
    with pytest.raises(ZeroDivisionError):
        scene.ask(error)
    assert not scene.uncaught.keeps_partitions(harmless)
    assert not scene.uncaught.keeps_partitions(
        ShutDownError("shop", "db-3", 41, "RecordError", "…")
    )
    assert (given, scene.told) == ([error, harmless], [error])
    scene.can_tell = False
    assert not scene.uncaught.keeps_partitions(error)
    assert not Scene(None).uncaught.keeps_partitions(error)
    assert not scene.uncaught.keeps_partitions(KeyboardInterrupt())
    assert not scene.uncaught.keeps_partitions(None)
    assert given == [error, harmless, error]


def test_what_is_wrong_with_an_answer_is_said_after_the_worker_has_closed() -> None:
    given: list[Exception] = []
    scene = Scene(given.append)
    error = ZeroDivisionError()
    assert not scene.uncaught.keeps_partitions(error)
    with pytest.raises(ConfigError, match="returned None"):
        scene.ask(error)
    assert given == [error]


def test_nobody_is_asked_about_a_shutdown_that_was_heard_of() -> None:
    """Its answer would be told to all once more."""
    scene = Scene(lambda _: APPLICATION)
    with pytest.raises(ShutDownError):
        scene.ask(ShutDownError("shop", "db-3", 41, "RecordError", "…"))
    assert scene.told == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("replace", "returned 'replace'"),
        (None, "returned None"),
        (True, "returned True"),
        (ValueError(SECRET), "returned a ValueError"),
        ([SECRET], "returned a list"),
    ],
)
def test_what_is_no_answer_is_told_with_its_place(answer: object, said: str) -> None:
    def my_handler(error: Exception) -> Any:
        return answer

    scene = Scene(my_handler)
    with pytest.raises(ConfigError, match="must return") as raised:
        scene.ask(StreamsError("it is broken"))
    line = my_handler.__code__.co_firstlineno
    assert f"{__file__}:{line}" in str(raised.value)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)
    assert ("application_failed", "it is broken") in [
        (name, fields.get("reason")) for name, fields in scene.log.events
    ]


def test_a_handler_that_raises_is_told_with_its_place() -> None:
    def my_handler(error: Exception) -> UncaughtErrorResponse:
        raise KeyError(SECRET)

    scene = Scene(my_handler)
    with pytest.raises(ConfigError, match="raised KeyError") as raised:
        scene.ask(ZeroDivisionError())
    assert f"{__file__}:{my_handler.__code__.co_firstlineno}" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "application_failed" in scene.log.names


async def _awaits(error: Exception) -> UncaughtErrorResponse:
    return REPLACE


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (lambda: REPLACE, "handler(error)"),
        (_awaits, "coroutine"),
        ("replace", "must be a function"),
    ],
)
def test_what_cannot_be_asked_is_refused_where_it_is_given(handler: Any, said: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"application.id": "copy", "bootstrap.servers": "localhost:1"}
    with pytest.raises(ConfigError, match="uncaught_error_handler") as raised:
        KafkaStreams(builder.build(), settings, uncaught_error_handler=handler)
    assert said in str(raised.value)
