"""Times in another unit than milliseconds, which a broker refuses: the error says what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, StreamsBuilder, Topology, serdes
from headrace.topology.errors import FarTimeWarning
from tests.support import kafka
from tests.support.live import Live, settings_of
from tests.support.topics import Topics
from tests.support.topologies import EXACTLY_ONCE

SECOND_S = 1_700_000_000
TIMES = {"microseconds": SECOND_S * 10**6, "nanoseconds": SECOND_S * 10**9}
Steps = Callable[[KStream[Any, Any]], KStream[Any, Any]]
STEPS: dict[str, Steps] = {
    "output": lambda stream: stream,
    "changelog": lambda s: s.group_by_key().count(store="rows").to_stream().map_values(str),
}


def topology_of(steps: Steps, source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    read: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    stream = builder.stream(source, timestamps=lambda record, _: int(record.value), **read)
    steps(stream).to(output, key=serdes.string, value=serdes.string)
    return builder.build()


@pytest.mark.parametrize(
    ("unit", "steps", "guarantee"),
    [
        ("microseconds", "output", "exactly_once_v2"),
        ("microseconds", "changelog", "exactly_once_v2"),
        ("nanoseconds", "output", "at_least_once"),
    ],
)
@pytest.mark.timeout(60)
def test_a_time_in_another_unit_is_told_with_its_year_its_unit_and_the_topics_setting(
    unit: str, steps: str, guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    source, output = topics.create("in"), topics.create("out")
    values = [SECOND_S * 1_000, TIMES[unit], SECOND_S * 1_000]
    kafka.write(topics.bootstrap, source, [(b"k", b"%d" % value) for value in values])
    settings = settings_of(topics, tmp_path, processing_guarantee=guarantee)
    error = Live(topology_of(STEPS[steps], source, output), settings).failure()
    assert isinstance(error, RecordError)
    text = str(error)
    assert "its timestamp is too far from the broker's clock" in text
    assert f"{TIMES[unit]} (in the year " in text
    assert f"it looks like {unit} of 2023-11-14" in text
    assert "Raise message.timestamp.after.max.ms of " in text
    assert "the records of now are late then" in text
    if error.first != error.offset:
        assert f"{source}-0 offsets {error.first} to {error.offset}" in text
    assert error.first <= 1 <= error.offset


@pytest.mark.parametrize("steps", STEPS)
def test_the_test_driver_warns_of_a_time_that_brokers_refuse(steps: str) -> None:
    with TopologyTestDriver(topology_of(STEPS[steps], "in", "out"), EXACTLY_ONCE) as driver:
        source = driver.input("in", key=serdes.string, value=serdes.string)
        source.send("k", str(SECOND_S * 1_000))
        with pytest.warns(FarTimeWarning, match="looks like microseconds of 2023-11-14"):
            source.send("k", str(TIMES["microseconds"]))
