"""The dead-letter topic: what is written there, and that it is as exact as all other output."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import OutputRecord, TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE

DEAD = "dead-letters"
STAGES = ("deserialization", "processing", "production")
CONTINUE = {
    **{f"{stage}.exception.handler": "continue" for stage in STAGES},
    "errors.dead.letter.queue.topic.name": DEAD,
    "statestore.cache.max.bytes": 0,
}
PREFIX = "__streams.errors."


def divided() -> Topology:
    """Twelve divided by each number; a three cannot be written."""
    builder = StreamsBuilder()
    numbers = builder.stream("in", key=serdes.string, value=serdes.json, name="read")
    results = numbers.map_values(lambda n: 12 // n, name="divide")
    results.map_values(lambda n: {n} if n == 3 else n).to("out", name="write")
    return builder.build()


def dead(driver: TopologyTestDriver, **options: Any) -> list[OutputRecord[Any, Any]]:
    return driver.output(DEAD, **options).read_all()


def about(record: OutputRecord[Any, Any]) -> dict[str, str]:
    """The headers that say what went wrong."""
    named = [(name, value) for name, value in record.headers if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX): (value or b"").decode() for name, value in named}


def test_a_dead_letter_has_the_bytes_headers_and_place_of_its_input_record() -> None:
    driver = TopologyTestDriver(divided(), CONTINUE, partitions={"in": 2})
    source = driver.input("in")
    source.send("a", 1, partition=1)
    source.send("b", 0, timestamp=77, headers=[("h", b"1"), ("h", None)], partition=1)
    (record,) = dead(driver)
    assert (record.key, record.value, record.timestamp) == (b"b", b"0", 77)
    assert list(record.headers[:2]) == [("h", b"1"), ("h", None)]
    headers = about(record)
    trace = headers.pop("stacktrace")
    with pytest.raises(ZeroDivisionError) as error:  # Python 3.14 says it in other words
        operator.floordiv(12, 0)
    assert headers == {
        "exception": "ZeroDivisionError",
        "message": str(error.value),
        "topic": "in",
        "partition": "1",
        "offset": "1",
    }
    assert "12 // n" in trace
    assert [r.value for r in driver.output("out").read_all()] == [12]


def test_each_node_that_fails_on_a_record_writes_a_letter_with_its_name() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("in", key=serdes.string, value=serdes.json)
    numbers.map_values(lambda n: 12 // n, name="left").to("out")
    numbers.map_values(lambda n: 24 // n, name="right").to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("in").send("a", 0)
    letters = dead(driver)
    assert [dict(one.headers)["headrace.errors.node"] for one in letters] == [b"left", b"right"]
    assert {about(one)["offset"] for one in letters} == {"0"}


@pytest.mark.parametrize(
    ("value", "error"),
    [(b"not json", "SerdeError"), (b"0", "ZeroDivisionError"), (b"4", "SerdeError")],
)
def test_every_stage_writes_the_input_as_it_was_read(value: bytes, error: str) -> None:
    """Also the production handler: what could not be written is nobody's bytes."""
    driver = TopologyTestDriver(divided(), CONTINUE)
    driver.input("in").send_bytes(b"k", value)
    driver.input("in").send_bytes(None, b"2")
    (record,) = dead(driver)
    assert (record.key, record.value) == (b"k", value)
    assert about(record)["exception"].endswith(error)
    assert [r.value for r in driver.output("out").read_all()] == [6]


def test_nothing_of_the_record_is_logged() -> None:
    driver = TopologyTestDriver(divided(), CONTINUE)
    driver.input("in").send_bytes(b"secret", b"secret")
    (record,) = dead(driver)
    assert record.value == b"secret"
    assert "secret" not in repr(driver.events)


def test_an_aborted_dead_letter_is_never_seen_and_comes_again() -> None:
    """It is in the transaction of its input offset."""
    driver = TopologyTestDriver(divided(), {**EXACTLY_ONCE, **CONTINUE}, commit="manual")
    driver.input("in").send("k", 0)
    assert dead(driver) == []
    driver.abort()
    driver.run()
    assert dead(driver) == []
    assert len(dead(driver, isolation="read_uncommitted")) == 2
    driver.commit()
    assert [(r.key, r.value) for r in dead(driver)] == [(b"k", b"0")]


@pytest.mark.parametrize(
    "step", ["caches_flushed", "changelogs_written", "offsets_sent", "transaction_committed"]
)
def test_each_bad_record_has_one_dead_letter_wherever_a_worker_dies(step: Any) -> None:
    driver = TopologyTestDriver(divided(), {**EXACTLY_ONCE, **CONTINUE}, commit="manual")
    driver.input("in").send_many([("a", 0), ("b", 1), ("c", 0)])
    driver.crash(at=step)
    driver.commit()
    driver.input("in").send("d", 0)
    driver.commit()
    assert [r.key for r in dead(driver)] == [b"a", b"c", b"d"]
    assert [r.value for r in driver.output("out").read_all()] == [12]


def test_a_failure_that_no_input_record_is_known_of_has_no_place() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", key=serdes.string).group_by_key().count(store="rows")
    counts.map_values(lambda n: 1 // (n - n), name="bad").to_stream().to("out")
    settings = {**CONTINUE, "statestore.cache.max.bytes": 10_000}
    driver = TopologyTestDriver(builder.build(), settings, commit="manual")
    driver.input("in").send("k", 1, timestamp=9)
    driver.commit()
    (record,) = dead(driver)
    assert (record.key, record.value, record.timestamp) == (None, None, 9)
    assert about(record).keys() == {"exception", "message", "stacktrace"}


def test_a_dead_letter_that_is_too_large_stops_the_application() -> None:
    driver = TopologyTestDriver(divided(), CONTINUE)
    driver.cluster.create(DEAD).config["max.message.bytes"] = "10"
    with pytest.raises(RecordError, match=f"larger than .* of 10 of {DEAD}") as caught:
        driver.input("in").send("a key of many bytes", 0)
    assert caught.value.offset == 0
    assert driver.committed_offsets("in") == {0: 0}


def test_a_dead_letter_of_what_cannot_be_decoded_is_told_as_too_large_too() -> None:
    driver = TopologyTestDriver(divided(), CONTINUE)
    driver.cluster.create(DEAD).config["max.message.bytes"] = "10"
    with pytest.raises(RecordError, match=f"larger than .* of 10 of {DEAD}"):
        driver.input("in").send_bytes(b"a key of many bytes", b"no number")


def test_without_the_topic_nothing_is_written() -> None:
    settings = {**CONTINUE, "errors.dead.letter.queue.topic.name": None}
    driver = TopologyTestDriver(divided(), settings)
    driver.input("in").send("k", 0)
    assert DEAD not in driver.cluster.topics
    assert driver.committed_offsets("in") == {0: 1}


def test_fail_writes_no_dead_letter() -> None:
    """The record is met again at the next start, so it would be written again each time."""
    settings = {**CONTINUE, "processing.exception.handler": "fail"}
    driver = TopologyTestDriver(divided(), settings)
    with pytest.raises(RecordError):
        driver.input("in").send("k", 0)
    assert dead(driver, isolation="read_uncommitted") == []
