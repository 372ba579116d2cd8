"""A record that cannot be processed ends a backfill at once, and the message names it."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import BackfillError, backfill
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.payload_time import event_time
from headrace.topology.topology import Topology
from tests.support.live import settings_of
from tests.support.topics import Topics

ROWS = 2000
START = datetime(2026, 1, 1, tzinfo=UTC)


def topology(source: str) -> Topology:
    builder = StreamsBuilder()
    times = event_time("at")
    stream = builder.stream(source, key=serdes.string, value=serdes.json, timestamps=times)
    stream.group_by(lambda _, value: value["site"], key=serdes.string).count(store="counts")
    return builder.build()


def rows(wrong: set[int]) -> list[tuple[str, str, datetime]]:
    found = []
    for number in range(ROWS):
        at = START + timedelta(hours=number)
        time = "yesterday" if number in wrong else at.isoformat()
        found.append((f"m{number % 7}", json.dumps({"site": "a", "at": time}), at))
    return found


def test_bad_rows_of_an_archive_end_a_backfill_at_once(
    spark: Any,
    topics: Topics,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = topics.create("readings", partitions=2)
    built, settings = topology(source), settings_of(topics, tmp_path)
    archive = spark.createDataFrame(rows({700, 1400}), "key string, value string, at timestamp")
    archive = archive.withColumnRenamed("at", "timestamp")
    end = START + timedelta(days=300)
    with caplog.at_level(logging.INFO), pytest.raises(BackfillError) as caught:
        backfill(built, settings, spark=spark, source={source: archive}, cutover=end)
    text = str(caught.value)
    bad = {700: "2026-01-30T04:00:00.000Z", 1400: "2026-02-28T08:00:00.000Z"}
    assert any(time in text for time in bad.values()), text
    assert f"in the archive of {source}, time 2026-" in text
    assert "set deserialization.exception.handler" in text
    assert text.endswith("Nothing is visible. Correct the cause, and run the backfill again")
    assert "Traceback" not in capfd.readouterr().err
    assert "stage_started" in caplog.text
