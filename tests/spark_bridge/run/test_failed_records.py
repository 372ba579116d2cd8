"""Errors name the failed record, whatever its position: live and in a backfill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.streams.errors import RecordError, StreamsError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.payload_time import event_time
from headrace.topology.topology import Topology
from tests.spark_bridge.support.local_engine import backfilled

RECORDS = 6000
"""More than a task run takes at a time."""
START_MS = 1_790_812_800_000
WRONG: dict[str, bytes] = {
    "extractor": b'{"at": "yesterday", "n": 1}',
    "decode": b"not json",
    "function": b'{"at": 1790812800000, "n": null}',
    "encode": b'{"at": 1790812800000, "n": "text"}',
}
POSITIONS = ([0], [1, 2], [2500, 2501, 5400], [5001], [RECORDS - 1])
LETTERS = {
    "errors.dead.letter.queue.topic.name": "dead",
    "deserialization.exception.handler": "continue",
    "processing.exception.handler": "continue",
    "production.exception.handler": "continue",
}
OFFSET = "__streams.errors.offset"


def add_one(value: Any) -> Any:
    n: Any = value["n"]
    return n if isinstance(n, str) else n + 1


def topology(*, timed: bool, repartitions: bool) -> Topology:
    builder = StreamsBuilder()
    times = event_time("at", format="epoch_ms") if timed else None
    stream = builder.stream("in", key=serdes.string, value=serdes.json, timestamps=times)
    numbers = stream.map_values(add_one)
    numbers.to("out", value=serdes.integer)
    if repartitions:
        grouped = numbers.group_by(lambda _, n: n % 7, key=serdes.integer, value=serdes.integer)
        grouped.count(store="counts")
    return builder.build()


def values(kind: str, wrong: Sequence[int]) -> list[bytes]:
    right = json.dumps({"at": START_MS, "n": 1}).encode()
    return [WRONG[kind] if n in wrong else right for n in range(RECORDS)]


@pytest.fixture(params=[True, False], ids=["repartitions", "one stage"])
def repartitions(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture(params=POSITIONS, ids=str)
def wrong(request: pytest.FixtureRequest) -> list[int]:
    found: list[int] = request.param
    return found


@pytest.fixture(params=["extractor", "decode", "timed decode", "function", "encode"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def program(kind: str, repartitions: bool) -> tuple[Topology, str]:
    timed = kind in ("extractor", "timed decode")
    return topology(timed=timed, repartitions=repartitions), kind.removeprefix("timed ")


def in_kafka(driver: TopologyTestDriver, found: Sequence[bytes]) -> TopologyTestDriver:
    for number, value in enumerate(found):
        driver.cluster.append("in", value, b"k", 0, START_MS + number, None)
    return driver


def test_a_live_task_names_the_first_record_that_fails(
    kind: str, repartitions: bool, wrong: list[int]
) -> None:
    built, kind = program(kind, repartitions)
    driver = TopologyTestDriver(built, {}, partitions=1, commit="manual")
    with pytest.raises(RecordError) as caught:
        in_kafka(driver, values(kind, wrong)).run()
    assert (caught.value.offset, caught.value.first) == (wrong[0], wrong[0])


def test_a_backfill_names_the_first_record_of_kafka_that_fails(
    kind: str, repartitions: bool, wrong: list[int]
) -> None:
    built, kind = program(kind, repartitions)
    driver = TopologyTestDriver(built, {}, partitions=1, commit="manual")
    in_kafka(driver, values(kind, wrong))
    with pytest.raises(StreamsError, match=rf"in-0 offset {wrong[0]}\b"):
        backfilled(built, {}, driver.cluster)


def test_dead_letters_of_a_backfill_name_each_record_that_fails(
    kind: str, repartitions: bool, wrong: list[int]
) -> None:
    built, kind = program(kind, repartitions)
    driver = TopologyTestDriver(built, LETTERS, partitions=1, commit="manual")
    in_kafka(driver, values(kind, wrong))
    _, rows = backfilled(built, LETTERS, driver.cluster)
    letters = [dict(row.headers or ()) for row in rows if row.topic == "dead"]
    assert sorted({int(letter[OFFSET] or b"-1") for letter in letters}) == wrong
