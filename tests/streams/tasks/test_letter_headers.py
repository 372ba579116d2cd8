"""What a dead letter says of an error: the user's error, and never too many bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.config.dead_letter_headers import (
    CLASS_MAX,
    HEADER,
    MESSAGE_MAX,
    STACKTRACE_MAX,
    fitted,
    letter_size,
)
from headrace.streams.config.handlers import Failure
from headrace.streams.connectors.sqlite import SqliteSink
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.errors import SerdeError
from tests.streams.tasks.test_dead_letters import CONTINUE, DEAD, about, dead
from tests.support.topologies import EXACTLY_ONCE

MAXIMA = {"exception": CLASS_MAX, "message": MESSAGE_MAX, "stacktrace": STACKTRACE_MAX}


class NoTextError(Exception):
    """An error whose text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoStrError(Exception):
    """An error whose text is none."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class ValidatedError(ValueError):
    """What a library for models raises."""


def raising(error: Exception) -> Topology:
    builder = StreamsBuilder()

    def fail(_: Any) -> Any:
        raise error

    stream = builder.stream("in", key=serdes.bytes, value=serdes.bytes)
    stream.map_values(fail, name="step").to("out")
    return builder.build()


def letter_of(error: Exception, key: bytes = b"k", value: bytes = b"v", **more: Any) -> Any:
    driver = TopologyTestDriver(raising(error), CONTINUE)
    limit = more.pop("limit", None)
    if limit is not None:
        driver.cluster.create(DEAD).config["max.message.bytes"] = str(limit)
    driver.input("in").send(key, value, **more)
    (letter,) = dead(driver)
    assert (letter.key, letter.value) == (key, value)
    return letter


def chained() -> Exception:
    """A hundred errors, each the cause of the next one, of 10 KB each."""
    error: Exception = ValueError("é" * 5_000)
    for number in range(100):
        after = ValueError(f"{number} " + "é" * 5_000)
        after.__cause__ = error
        error = after
    return error


ERRORS: dict[str, Any] = {
    "short": lambda: ValueError("odd"),
    "no text": NoTextError,
    "text that is none": NoStrError,
    "megabytes": lambda: ValueError("é" * 2_000_000),
    "half a surrogate": lambda: ValueError("\ud800" * 3_000),
    "chained": chained,
    "named at length": type("N" * 5_000, (ValueError,), {}),
    "a group": lambda: ExceptionGroup("g", [ValueError("x" * 9_000)] * 50),
}


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
def test_every_header_is_bounded(make: Any) -> None:
    letter = letter_of(make())
    for name, value in letter.headers:
        assert len(value) <= MAXIMA.get(name.removeprefix(HEADER), 300), name
        value.decode()
    assert about(letter)["offset"] == "0"


def test_what_is_left_out_is_counted() -> None:
    headers = about(letter_of(ValueError("a" * 5_000)))
    kept, _, mark = headers["message"].partition(" [... ")
    assert mark == f"{5_000 - len(kept)} bytes left out]"
    stack = about(letter_of(ValueError("b" * 90_000)))["stacktrace"]
    assert "bytes left out]\n" in stack
    assert "in fail" in stack  # the frames, though the text at the end is longer than all
    assert stack.endswith("b\n")


def test_an_error_without_text_says_so() -> None:
    headers = about(letter_of(NoTextError()))
    assert headers["message"] == "(no text: str() of the NoTextError raised RuntimeError)"
    assert headers["exception"].endswith("test_letter_headers.NoTextError")


def test_a_value_of_600_kb_that_the_error_quotes_becomes_a_letter() -> None:
    """Value and text together are larger than the topic takes."""
    value = b"x" * 600_000
    letter_of(ValueError(f"bad value {value.decode()}"), value=value)


@pytest.mark.parametrize("room", [0, 1, 100, 300, 700, 3_000, 30_000])
def test_headers_shrink_where_the_record_is_nearly_as_large_as_the_topic_takes(room: int) -> None:
    value = b"x" * 50_000
    own = [("trace", b"1" * 40)]
    limit = letter_size(b"k", value, own) + room
    letter = letter_of(chained(), value=value, headers=own, limit=limit)
    assert letter.headers[0] == own[0]
    assert letter_size(b"k", value, letter.headers) <= limit
    if room >= 300:
        assert {"topic", "partition", "offset", "exception"} <= about(letter).keys()
    if room >= 700:
        assert about(letter)["message"].endswith("bytes left out]")


def test_a_record_that_does_not_fit_names_topic_record_and_setting() -> None:
    driver = TopologyTestDriver(raising(ValueError("odd")), CONTINUE)
    driver.cluster.create(DEAD).config["max.message.bytes"] = "500"
    with pytest.raises(RecordError) as caught:
        driver.input("in").send(b"k", b"x" * 1_000)
    text = str(caught.value)
    assert "larger than the max.message.bytes of 500 of dead-letters; raise it above" in text
    assert "in-0 offset 0" in text
    assert "store less per key" not in text


def test_any_headers_fit_in_any_room_that_the_others_leave() -> None:
    rng = random.Random(7)
    names = ["topic", "partition", "offset", "exception", "message", "stacktrace", "else"]
    for _ in range(2_000):
        headers = []
        for _ in range(rng.randrange(12)):
            name = rng.choice([HEADER + rng.choice(names), "own", "naïve"])
            size = rng.choice([0, 3, 90, 5_000])
            headers.append((name, rng.choice([None, "é".encode() * size, bytes(size)])))
        own = [header for header in headers if not header[0].startswith(HEADER)]
        least = letter_size(None, None, own) - letter_size(None, None, ())
        room = least + rng.choice([0, 10, 200, 1_000, 6_000, 100_000])
        found = fitted(headers, room)
        assert letter_size(None, None, found) - letter_size(None, None, ()) <= room
        assert [header for header in found if not header[0].startswith(HEADER)] == own
        assert [name for name, _ in found if name in dict(headers)] == [name for name, _ in found]


def test_a_letter_of_a_letter_keeps_what_is_its_own() -> None:
    first = Failure(
        ValueError("first"), stage="processing", node="n", task_id="0_0", topic="in", offset=1
    ).dead_letter(DEAD)
    second = Failure(
        ValueError("second"),
        stage="processing",
        node="n",
        task_id="0_0",
        topic=DEAD,
        offset=7,
        headers=first.headers,
    ).dead_letter(DEAD)
    found = fitted(second.headers, 170)
    assert (HEADER + "topic", b"dead-letters") in found
    assert (HEADER + "topic", b"in") not in found


def parse(data: bytes) -> str:
    raise ValidatedError("field price: Input should be a valid number") from KeyError("price")


MODEL = serdes.serde_from(serialize=str.encode, deserialize=parse, name="model")


def validated(step: str) -> Topology:
    builder = StreamsBuilder()
    if step == "deserialization":
        builder.stream("in", key=serdes.string, value=MODEL).to("out", value=serdes.string)
    else:
        stream = builder.stream("in", key=serdes.string, value=serdes.string)
        failing = serdes.serde_from(serialize=parse, deserialize=bytes.decode, name="model")  # type: ignore[arg-type]
        stream.to("out", value=failing)
    return builder.build()


@pytest.mark.parametrize("step", ["deserialization", "production"])
def test_a_letter_has_the_error_of_the_user_s_function(step: str) -> None:
    driver = TopologyTestDriver(validated(step), CONTINUE)
    driver.input("in", value=serdes.string).send("k", "v")
    headers = about(dead(driver)[0])
    assert headers["message"] == "field price: Input should be a valid number"
    assert headers["exception"].endswith("test_letter_headers.ValidatedError")
    assert "serde 'model' cannot" in headers["stacktrace"]
    (event,) = [e for e in driver.events if e["event"] == "record_skipped"]
    assert event["error"] == "ValidatedError"
    assert "price" not in repr(event)


def test_a_letter_has_the_error_of_the_function_that_makes_a_row(tmp_path: Path) -> None:
    def row(_: Any, value: Any) -> Any:
        raise ValidatedError(f"no row of {value}")

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.to_sink(
        SqliteSink(str(tmp_path / "a.db"), "t", {"a": str}, row=row, create=True), name="keep"
    )
    driver = TopologyTestDriver(
        builder.build(), {**EXACTLY_ONCE, **CONTINUE}, commit="manual", real_sinks=True
    )
    driver.input("in").send("k", "v")
    driver.commit()
    assert about(dead(driver)[0])["message"] == "no row of v"


def test_bad_records_are_logged_at_powers_of_two() -> None:
    driver = TopologyTestDriver(raising(ValueError("odd")), CONTINUE)
    for _ in range(20):
        driver.input("in").send(b"k", b"v")
    events = [e for e in driver.events if e["event"] == "record_skipped"]
    assert [event["count"] for event in events] == [1, 2, 4, 8, 16]
    assert len(dead(driver)) == 20


def test_reading_a_letter_with_another_serde_names_the_topic_and_the_serde() -> None:
    driver = TopologyTestDriver(raising(ValueError("odd")), CONTINUE)
    driver.input("in").send(b"k", b"no json")
    with pytest.raises(SerdeError) as caught:
        dead(driver, value=serdes.json)
    text = str(caught.value)
    assert "(topic dead-letters, partition 0, offset 0)" in text
    assert "key=serdes.bytes, value=serdes.bytes" in text
