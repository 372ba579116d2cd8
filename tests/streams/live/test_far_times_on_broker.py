"""Times in another unit than milliseconds, which a broker refuses: the error says what they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, Processor, Record, StreamsBuilder, Topology, serdes
from headrace.topology.errors import FarTimeWarning
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
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
    assert f"{TIMES[unit]} (in the year " in text
    assert f"it looks like {unit} of 2023-11-14" in text
    assert "Raise message.timestamp.after.max.ms of " in text
    assert "current records are then late" in text
    assert (error.topic, error.first, error.offset) == (source, 1, 1)
    assert "headrace skip" in text


YEAR_2036_MS = 2_082_758_400_000
IN_AN_HOUR_MS = 3_600_000
FAR = {"message.timestamp.after.max.ms": str(2**63 - 1)}
PATHS: dict[str, Steps] = {
    "output": lambda stream: stream,
    "forwarded": lambda stream: stream.process(Ahead),
    "forwarded to a repartition topic": lambda stream: stream.process(Ahead).repartition(
        name="again", key=serdes.string, value=serdes.string
    ),
    "changelog": lambda s: s.group_by_key().count(store="rows").to_stream().map_values(str),
    "folded before a repartition topic": lambda s: (
        s.group_by(lambda _, v: v, key=serdes.string, name="by")
        .count(store="rows")
        .to_stream()
        .map_values(str)
    ),
}


class Ahead(Processor[Any, Any, Any, Any]):
    """Forward a record with the time in its value."""

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record.with_timestamp(int(record.value)))


@dataclass
class Bench:
    """An application that reads one record in the year 2036 between records of now."""

    topology: Topology
    settings: dict[str, Any]
    source: str
    output: str
    dead: str
    values: list[int]


def bench_of(path: str, topics: Topics, directory: Path, guarantee: str) -> Bench:
    """The source accepts all times; what the application writes has the brokers' limits."""
    source, output = topics.create("in", config=FAR), topics.create("out")
    dead = topics.create("dead")
    now_ms = time.time_ns() // 1_000_000
    values = [now_ms, now_ms + 1, now_ms + IN_AN_HOUR_MS // 2, YEAR_2036_MS, now_ms + 2, now_ms + 3]
    producer = confluent_kafka.Producer({"bootstrap.servers": topics.bootstrap})
    for value in values:
        timestamp = now_ms if path.startswith("forwarded") else value
        producer.produce(source, b"%d" % value, b"k", timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    PATHS[path](stream).to(output, key=serdes.string, value=serdes.string)
    settings = settings_of(
        topics, directory, processing_guarantee=guarantee, commit_interval_ms=100
    )
    return Bench(builder.build(), settings, source, output, dead, values)


@pytest.mark.parametrize(
    ("path", "guarantee"),
    [*((path, "exactly_once_v2") for path in PATHS), ("output", "at_least_once")],
)
@pytest.mark.timeout(120)
def test_a_time_that_the_brokers_would_refuse_names_its_record_whatever_gave_it(
    path: str, guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    bench = bench_of(path, topics, tmp_path, guarantee)
    error = Live(bench.topology, bench.settings).failure()
    assert isinstance(error, RecordError)
    text = str(error)
    assert (error.topic, error.partition) == (bench.source, 0), text
    assert (error.first, error.offset) == (3, 3), text
    assert f"{YEAR_2036_MS} (in the year 2036)" in text
    assert "message.timestamp.after.max.ms of " in text
    assert "headrace skip" in text


@pytest.mark.parametrize("path", ["output", "forwarded", "forwarded to a repartition topic"])
@pytest.mark.timeout(120)
def test_a_time_that_the_brokers_would_refuse_can_go_to_the_dead_letters(
    path: str, topics: Topics, tmp_path: Path
) -> None:
    bench = bench_of(path, topics, tmp_path, "exactly_once_v2")
    settings = bench.settings | {
        "production.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": bench.dead,
    }
    with live(bench.topology, settings) as app:
        app.wait(lambda: len(kafka.read(topics.bootstrap, bench.output)) >= 5, what="all others")
    written = [r.value for r in kafka.read(topics.bootstrap, bench.output)]
    assert written == [b"%d" % value for value in bench.values if value != YEAR_2036_MS]
    (letter,) = kafka.read(topics.bootstrap, bench.dead)
    assert letter.value == b"%d" % YEAR_2036_MS


@pytest.mark.parametrize("steps", STEPS)
def test_the_test_driver_warns_of_a_time_that_brokers_refuse(steps: str) -> None:
    with TopologyTestDriver(topology_of(STEPS[steps], "in", "out"), EXACTLY_ONCE) as driver:
        source = driver.input("in", key=serdes.string, value=serdes.string)
        source.send("k", str(SECOND_S * 1_000))
        with pytest.warns(FarTimeWarning, match="looks like microseconds of 2023-11-14"):
            source.send("k", str(TIMES["microseconds"]))
