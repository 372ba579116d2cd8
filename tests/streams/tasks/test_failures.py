"""What is said of the error that stopped an application."""

from __future__ import annotations

import functools
import io

import pytest
import structlog

from headrace.streams import TopologyTestDriver, logs
from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.supervisor.exit_codes import TABLE
from headrace.streams.supervisor.supervisor import _fix_before_restart
from headrace.streams.tasks.failures import describe_failure, log_failure
from headrace.topology import SessionWindows, StreamsBuilder, serdes

SECRET = "a secret of the record"


def price(order: dict[str, object]) -> object:
    return order[SECRET]


def failed() -> RecordError:
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda order: price(order)).to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", {})
    return raised.value


def test_people_see_the_text_of_an_error_and_their_own_lines_alone() -> None:
    shown = describe_failure(failed(), full=True)
    assert shown.cause == "KeyError"
    assert shown.traceback[-1] == f"KeyError: {SECRET!r}"
    assert shown.traceback[-2].strip() == "return order[SECRET]"
    assert shown.traceback[-4].strip().startswith("builder.stream(")
    assert all(__file__ in line for line in shown.traceback if line.startswith("File"))
    assert [place.rpartition(" ")[2] for place in shown.places][-2:] == ["<lambda>", "price"]
    assert all(__file__ in place for place in shown.places)


def test_logs_have_the_places_and_no_text_that_may_quote_a_record() -> None:
    shown = describe_failure(failed(), full=False)
    assert shown.places[-1].endswith(" price")
    assert shown.reason.startswith("a user function raised KeyError (in-0 offset 0")
    assert SECRET not in repr(shown)
    foreign = describe_failure(ValueError(SECRET), full=False)
    assert foreign.reason == "ValueError; set log.errors=full to have its text in the log"


def test_an_error_of_ours_that_no_user_code_is_behind_has_no_places() -> None:
    assert describe_failure(ConfigError("poll.ms must be at least 0"), full=True).places == []


def test_code_that_a_library_generates_for_a_class_is_no_place() -> None:
    def gap() -> object:
        return SessionWindows(inactivity_gap=10)  # type: ignore[arg-type]

    with pytest.raises(Exception, match="inactivity_gap") as raised:
        gap()
    shown = describe_failure(raised.value, full=True)
    assert shown.places[-1].endswith(" gap")
    assert "<string>" not in str(shown)


def test_on_a_console_the_lines_stand_below_the_event() -> None:
    out = io.StringIO()
    logs.configure("console", stream=out, colors=False)
    try:
        log_failure(structlog.get_logger(), describe_failure(failed(), full=True))
    finally:
        structlog.reset_defaults()
    lines = out.getvalue().splitlines()
    assert "application_failed" in lines[0]
    assert "failure_located" in lines[1]
    assert lines[-1] == f"    KeyError: {SECRET!r}"


def test_what_has_to_come_first_has_no_links_of_the_documentation() -> None:
    assert any("](" in ending.again for ending in TABLE)
    assert not [ending for ending in TABLE if "](" in _fix_before_restart(ending.code)]


def two_or_three(key: str, value: int, *, more: int) -> tuple[str, int]:
    return key, value + more


def test_a_call_that_fails_before_it_begins_is_placed_at_the_function() -> None:
    wrapped = functools.partial(two_or_three, more=5)
    builder = StreamsBuilder()
    builder.stream("in").map(wrapped, name="pairs").to("out")
    driver = TopologyTestDriver(builder.build())
    wrapped.keywords["less"] = 5
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", 1)
    shown = describe_failure(raised.value, full=False)
    line = two_or_three.__code__.co_firstlineno
    assert shown.cause == "TypeError"
    assert shown.places == [f"{__file__}:{line} two_or_three (called by pairs)"]


def test_what_is_no_pair_is_placed_at_the_function() -> None:
    def no_pair(key: str, value: int) -> str:
        return "ab"

    builder = StreamsBuilder()
    builder.stream("in").map(no_pair, name="pairs").to("out")  # type: ignore[arg-type, return-value]
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", 1)
    (place,) = describe_failure(raised.value, full=False).places
    assert place == f"{__file__}:{no_pair.__code__.co_firstlineno} no_pair (called by pairs)"


def test_what_a_serde_refuses_is_placed_at_no_function() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, value: "out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", 5)
    places = describe_failure(raised.value, full=False).places
    assert not [place for place in places if "called by" in place]
