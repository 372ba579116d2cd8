"""Errors name the failed record, whatever its position: live and in a backfill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from structlog.testing import capture_logs

from headrace.spark_bridge.errors import RecordFailedError
from headrace.spark_bridge.history.archives import _Numbered
from headrace.spark_bridge.history.planning import make_plan
from headrace.spark_bridge.plan.job import (
    Archived,
    CompiledApplication,
    StageJob,
    pack_application,
)
from headrace.spark_bridge.records.packs import HEADERS
from headrace.spark_bridge.run.task_run import StageRun
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ARCHIVE_ROWS, RecordError, StreamsError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.metrics.snapshots import moment
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.payload_time import event_time
from headrace.topology.topology import Topology
from tests.spark_bridge.support.local_engine import HistoryMemoryAdmin, backfilled
from tests.spark_bridge.support.local_packs import rows_of

RECORDS = 6000
"""More than a task run takes at a time."""
START_MS = 1_790_812_800_000
WRONG: dict[str, bytes] = {
    "extractor": b'{"at": "yesterday", "n": 1}',
    "decode": b"not json",
    "function": b'{"at": 1790812800000, "n": null}',
    "encode": b'{"at": 1790812800000, "n": "text"}',
}
POSITIONS = ([0], [2500, 2501, 5400], [5001], [RECORDS - 1])
LETTERS = {
    "errors.dead.letter.queue.topic.name": "dead",
    "deserialization.exception.handler": "continue",
    "processing.exception.handler": "continue",
    "production.exception.handler": "continue",
}
HANDLERS = {
    "extractor": "deserialization",
    "decode": "deserialization",
    "function": "processing",
    "encode": "production",
}
SETTINGS: dict[str, object] = {"application.id": "test", "bootstrap.servers": "nowhere:1"}
HOUR_MS = 3_600_000
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


def from_archive(
    built: Topology, settings: Mapping[str, object], found: Sequence[bytes]
) -> list[dict[str, Any]]:
    """Run the first stage over an archive without offsets."""
    pytest.importorskip("pyspark")
    config = StreamsConfig.parse(SETTINGS | dict(settings))
    driver = TopologyTestDriver(built, settings, partitions=1, commit="manual")
    application = CompiledApplication.of(built, config)
    admin = HistoryMemoryAdmin(driver.cluster)
    plan = make_plan(application, admin, id="b", now_ms=0, until="latest", create=True)
    job = StageJob(
        pack_application(built, config),
        plan.to_text(),
        plan.stages[0],
        archived={TopicPartition("in", 0): Archived(ARCHIVE_ROWS, START_MS + len(found))},
    )
    count = len(found)
    rows = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.nulls(count, pa.int64()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(found, pa.binary()),
            "timestamp": pa.array([START_MS + HOUR_MS * n for n in range(count)], pa.int64()),
            "headers": pa.nulls(count, HEADERS),
        }
    )
    packs = list(_Numbered(job, "in")(iter([rows.slice(0, 4000), rows.slice(4000)])))
    records = [batch.filter(pc.equal(batch.column("kind"), "record")) for batch in packs]
    run = StageRun(job, application, plan, 0, lambda: None)  # type: ignore[arg-type,return-value]
    made = [pack for batch in run.run(iter(records)) for pack in batch.to_pylist()]
    return rows_of([pack for pack in made if pack["kind"] == "sink"])


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


def test_an_error_in_an_archive_names_its_row_and_time_and_nothing_of_live(
    kind: str, repartitions: bool, wrong: list[int]
) -> None:
    built, kind = program(kind, repartitions)
    with pytest.raises(RecordFailedError) as caught:
        from_archive(built, {}, values(kind, wrong))
    text = str(caught.value)
    time = moment(START_MS + HOUR_MS * wrong[0])
    row = f"row {wrong[0] + 1} by time of partition 0 in the archive of in"
    assert f"({row}, time {time}, node" in text
    assert "; correct the archive" in text
    assert f"{HANDLERS[kind]}.exception.handler" in text
    assert "headrace skip" not in text
    assert str(ARCHIVE_ROWS)[:8] not in text


def test_a_dead_letter_of_an_archive_has_its_time_and_no_offset(
    kind: str, repartitions: bool, wrong: list[int]
) -> None:
    built, kind = program(kind, repartitions)
    with capture_logs() as logs:
        rows = from_archive(built, LETTERS, values(kind, wrong))
    letters = [row for row in rows if row["topic"] == "dead"]
    times = [START_MS + HOUR_MS * number for number in wrong]
    assert sorted({letter["timestamp"] for letter in letters}) == times
    assert OFFSET not in {pair["name"] for letter in letters for pair in letter["headers"]}
    skipped = [event for event in logs if event["event"] == "record_skipped"]
    assert skipped[0]["record_time"] == moment(times[0])
    assert skipped[0]["offset"] is None


def test_rows_that_are_written_later_name_the_rows_of_an_archive_that_may_have_failed() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string, value=serdes.json).group_by_key()
    grouped.aggregate(dict, lambda _, value, __: value["n"], store="last", value=serdes.integer)
    with pytest.raises(RecordFailedError) as caught:
        from_archive(builder.build(), {}, values("encode", range(10)))
    assert str(ARCHIVE_ROWS)[:8] not in str(caught.value)
    assert "by time of partition 0 in the archive of in" in str(caught.value)
