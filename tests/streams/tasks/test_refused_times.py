"""Times that a topic does not accept: caught before they are produced, and named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, StreamsBuilder, serdes
from tests.support.topologies import EXACTLY_ONCE

NOW = datetime(2026, 5, 1, tzinfo=UTC)
NOW_MS = 1_777_593_600_000
YEAR_2036_MS = 2_082_758_400_000
HOUR_MS = 3_600_000
DEAD = "dead"
AFTER, BEFORE = (f"message.timestamp.{name}.max.ms" for name in ("after", "before"))
CONTINUE = {
    **{
        f"{s}.exception.handler": "continue"
        for s in ("deserialization", "processing", "production")
    },
    "errors.dead.letter.queue.topic.name": DEAD,
}
Step = Callable[[KStream[Any, Any]], KStream[Any, Any]]
STEPS: dict[str, Step] = {
    "sink": lambda stream: stream,
    "repartition": lambda s: s.repartition(name="again", key=serdes.string, value=serdes.string),
    "count": lambda s: s.group_by_key().count(store="rows").to_stream().map_values(str),
    "count after a repartition": lambda s: (
        s.group_by(lambda _, v: v, key=serdes.string, name="by")
        .count(store="rows")
        .to_stream()
        .map_values(str)
    ),
}
REFUSES = {
    "sink": "out",
    "repartition": "app-again-repartition",
    "count": "app-rows-changelog",
    "count after a repartition": "app-by-repartition",
}


def driver_of(
    name: str,
    settings: dict[str, Any],
    *,
    extractor: Any = None,
    config: dict[str, str] | None = None,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    read: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    stream = builder.stream("in", timestamps=extractor, **read)
    STEPS[name](stream).to("out", name="write", key=serdes.string, value=serdes.string)
    given = {**EXACTLY_ONCE, "application.id": "app", **settings}
    driver = TopologyTestDriver(builder.build(), given, now=NOW, commit="manual")
    topic = driver.cluster.create(REFUSES[name])
    topic.config.update(config or {AFTER: str(HOUR_MS)})
    driver.cluster.create(DEAD).config.update({AFTER: str(HOUR_MS)})
    return driver


def send(driver: TopologyTestDriver, *times: int) -> None:
    for number, time in enumerate(times):
        driver.input("in").send("k", f"v{number}", timestamp=time)


def failure(driver: TopologyTestDriver, *times: int) -> RecordError:
    try:
        send(driver, *times)
        driver.commit()
    except RecordError as error:
        return error
    raise AssertionError("it took all of them")


@pytest.mark.parametrize("name", STEPS)
def test_a_time_that_a_topic_refuses_is_named_with_its_record(name: str) -> None:
    error = failure(driver_of(name, {}), NOW_MS, NOW_MS + HOUR_MS, YEAR_2036_MS, NOW_MS)
    text = str(error)
    assert (error.topic, error.partition, error.first, error.offset) == ("in", 0, 2, 2), text
    assert (
        f"a record for {REFUSES[name]} has the timestamp {YEAR_2036_MS} (in the year 2036)" in text
    )
    assert f"{AFTER} of {REFUSES[name]} is {HOUR_MS}" in text
    assert "headrace skip" in text


@pytest.mark.parametrize("name", ["sink", "repartition"])
@pytest.mark.parametrize("extractor", [None, lambda record, _: record.timestamp])
def test_a_handler_decides_about_it(name: str, extractor: Any) -> None:
    """The letter is written at the present time: the dead letters would refuse the same."""
    with driver_of(name, CONTINUE, extractor=extractor) as driver:
        send(driver, NOW_MS, YEAR_2036_MS, NOW_MS + 1)
        driver.commit()
        assert [r.value for r in driver.output("out").read_all()] == ["v0", "v2"]
        (letter,) = driver.output(DEAD, key=serdes.string, value=serdes.string).read_all()
        assert (letter.key, letter.value, letter.timestamp) == ("k", "v1", NOW_MS)
        headers = dict(letter.headers)
        assert headers["__streams.errors.offset"] == b"1"
        assert headers["__streams.errors.exception"] == (
            b"headrace.topology.errors.RefusedTimestampError"
        )


def test_a_time_of_the_past_that_a_topic_refuses_is_named_too() -> None:
    driver = driver_of("sink", {}, config={BEFORE: str(HOUR_MS)})
    error = failure(driver, NOW_MS, NOW_MS - HOUR_MS, YEAR_2036_MS, NOW_MS - HOUR_MS - 1)
    assert f"behind the clock, and {BEFORE} of out is {HOUR_MS}" in str(error)
    assert error.offset == 3


def test_the_limit_moves_with_the_clock() -> None:
    with driver_of("sink", {}) as driver:
        send(driver, NOW_MS)
        driver.advance(timedelta(hours=2))
        send(driver, NOW_MS + 2 * HOUR_MS, NOW_MS + 3 * HOUR_MS)
        driver.commit()
        assert len(driver.output("out").read_all()) == 3


def test_a_topic_with_times_of_the_brokers_has_no_limit() -> None:
    config = {AFTER: str(HOUR_MS), "message.timestamp.type": "LogAppendTime"}
    with driver_of("sink", {}, config=config) as driver:
        send(driver, YEAR_2036_MS)
        driver.commit()
        assert len(driver.output("out").read_all()) == 1
