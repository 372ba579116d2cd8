"""Handlers that cannot be asked are refused with the settings; what is no answer names them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.handlers import Continue, DeadLetter, Fail, Failure
from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes

STAGES = ("deserialization", "processing", "production")


class Asked:
    """A handler as an object."""

    def __call__(self, failure: Failure) -> str:
        return "continue"

    def method(self, failure: Failure) -> str:
        return "continue"


async def coroutine(failure: Failure) -> str:
    return "continue"


def generator(failure: Failure) -> Any:
    yield "continue"


def of_java(record: Any, error: Any) -> str:
    return "continue"


def parsed(stage: str, handler: Any) -> StreamsConfig:
    return StreamsConfig.parse(
        {"application.id": "a", "bootstrap.servers": "b:1", f"{stage}.exception.handler": handler}
    )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (coroutine, r"coroutine \(.*py:\d+\) is a coroutine function, .*write a plain function"),
        (generator, r"generator \(.*py:\d+\) is a generator function, .*write it without yield"),
        (of_java, r"is called as handler\(failure\), and of_java \(.*py:\d+\) takes \(record.*1 p"),
        (lambda: "fail", r"<lambda> \(.*py:\d+\) takes \(\); give it 1 parameter"),
        (functools.partial(of_java, 1, 2), r"called as handler\(failure\)"),
        (Asked, r"must be an object, not the class Asked; write Asked\(\)"),
        (Continue, r"must not be the class Continue; write 'continue'"),
        (Fail, r"must not be the class Fail; write 'fail'"),
        (Continue(), "must be 'fail', 'continue' or a function"),
    ],
)
def test_a_handler_that_cannot_be_asked_is_refused_with_the_settings(
    stage: str, handler: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{stage}\.exception\.handler .*{said}"):
        parsed(stage, handler)


@pytest.mark.parametrize("handler", [Asked(), Asked().method, functools.partial(of_java, 1), print])
def test_whatever_can_be_asked_is_taken(handler: Any) -> None:
    parsed("processing", handler)


def letter(**other: Any) -> DeadLetter:
    fields: dict[str, Any] = {"topic": "dead", "key": b"k", "value": b"v"}
    return DeadLetter(**(fields | other))


WRONG: list[tuple[Any, str]] = [
    (None, "None"),
    (True, "a bool"),
    ("retry", "a str that is neither 'continue' nor 'fail'"),
    ("the payload", "a str that is neither"),
    (letter(), r"a DeadLetter outside of Continue for .*Continue\(\("),
    (Continue, "the class Continue"),
    (Continue("payload"), r"Continue with a str for its dead letters"),  # type: ignore[arg-type]
    (Continue(letter()), r"Continue with a DeadLetter for its dead letters"),  # type: ignore[arg-type]
    (Continue(("payload",)), r"Continue with a str among its dead letters"),  # type: ignore[arg-type]
    (Continue(5), r"Continue with an int for its dead letters"),  # type: ignore[arg-type]
]
LETTERS: list[tuple[DeadLetter, str]] = [
    (letter(key={"k": "payload"}), "whose key is a dict, not bytes or None"),
    (letter(value=5), "whose value is an int, not bytes or None"),
    (letter(topic=b"dead"), "whose topic is a bytes, not the name of a topic"),
    (letter(topic=""), "whose topic is empty, not the name of a topic"),
    (letter(timestamp="payload"), "whose timestamp is a str, not milliseconds since 1970"),
    (letter(timestamp=-1), "whose timestamp is out of range, not milliseconds since 1970"),
    (letter(headers={"h": b"1"}), "whose headers are not a list of \\(str, bytes\\) tuples"),
    (letter(headers=[("h", 5)]), "whose headers are not a list of"),
    (letter(headers=["payload"]), "whose headers are not a list of"),
    (letter(headers=[("\ud800", b"1")]), "whose headers are .* with names in UTF-8"),
]


def failing(stage: str, handler: Any) -> RecordError:
    builder = StreamsBuilder()
    source = builder.stream("in", key=serdes.string, value=serdes.json)
    failing: Callable[[Any], Any] = (lambda v: {v}) if stage == "production" else (lambda v: 1 // v)
    source.map_values(failing).to("out")
    driver = TopologyTestDriver(builder.build(), {f"{stage}.exception.handler": handler})
    with pytest.raises(RecordError) as caught:
        driver.input("in").send_bytes(b"k", b"no json" if stage == "deserialization" else b"0")
    assert driver.committed_offsets("in") == {0: 0}
    return caught.value


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("answer", "said"), WRONG, ids=str)
def test_what_is_no_answer_names_the_handler_and_what_to_return(
    stage: str, answer: Any, said: str
) -> None:
    def decide(failure: Failure) -> Any:
        return answer

    error = failing(stage, decide)
    text = str(error)
    assert f"the {stage}.exception.handler returned " in text
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(text)
    assert "Continue((failure.dead_letter(" in text
    place = f"test_wrong_handlers.py:{decide.__code__.co_firstlineno} decide"
    assert error.function is not None
    assert error.function.endswith(place)
    assert "payload" not in text
    assert "a user function raised" not in text


@pytest.mark.parametrize(("dead", "said"), LETTERS, ids=[said[:30] for _, said in LETTERS])
def test_a_dead_letter_that_cannot_be_written_names_the_handler(dead: Any, said: str) -> None:
    def decide(failure: Failure) -> Any:
        return Continue((dead,))

    error = failing("processing", decide)
    with pytest.raises(AssertionError, match=f"returned Continue with a dead letter {said}"):
        raise AssertionError(str(error))
    assert error.function is not None
    assert error.function.endswith(" decide")
    assert "payload" not in str(error)


def test_lists_of_dead_letters_are_taken() -> None:
    builder = StreamsBuilder()
    builder.stream("in", value=serdes.json).map_values(lambda v: 1 // v).to("out")
    driver = TopologyTestDriver(
        builder.build(),
        {"processing.exception.handler": lambda failed: Continue([failed.dead_letter("dead")])},
    )
    driver.input("in").send(None, 0)
    assert driver.output("dead").read().value == 0


@pytest.mark.parametrize("answer", ["retry", RuntimeError("the payload")])
def test_the_handler_is_named_where_a_row_of_a_global_table_cannot_be_read(answer: Any) -> None:
    def decide(failure: Failure) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    builder = StreamsBuilder()
    rows = builder.global_table("rows", key=serdes.string, value=serdes.json)
    source = builder.stream("in", key=serdes.string, value=serdes.json)
    source.join(rows, lambda a, b: b, key_mapper=lambda key, _: key).to("out")
    settings = {"deserialization.exception.handler": decide}
    driver = TopologyTestDriver(builder.build(), settings)
    with pytest.raises(RecordError) as caught:
        driver.input("rows").send_bytes(b"k", b"no json")
    text = str(caught.value)
    did = "raised RuntimeError" if isinstance(answer, Exception) else "returned a str that is neith"
    assert f"the deserialization.exception.handler {did}" in text
    assert caught.value.function is not None
    assert caught.value.function.endswith(" decide")
    assert "payload" not in text
