"""A backlog in the order of time on Spark: no record is late, as live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.spark_bridge import backfill
from tests.streams.live.test_event_time_on_broker import (
    PARTITIONS,
    backlog_settings,
    counted,
    hourly,
    write,
)
from tests.support import kafka
from tests.support.live import live
from tests.support.topics import Topics


def test_a_backfill_of_a_backlog_counts_what_live_counts(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    source = topics.create("in", partitions=PARTITIONS)
    expected = write(topics.bootstrap, source, empty=None)
    on_spark, alone = topics.create("out"), topics.create("out")
    settings = backlog_settings(topics, tmp_path)
    backfill(hourly(source, on_spark), settings, spark=spark)
    assert counted(topics.bootstrap, on_spark) == expected
    with live(hourly(source, on_spark), settings) as app:
        app.wait_running()
    assert counted(topics.bootstrap, on_spark) == expected
    fresh = {**settings, "application.id": topics.name("app"), "state.dir": str(tmp_path / "alone")}
    with live(hourly(source, alone), fresh) as app:
        app.wait(lambda: counted(topics.bootstrap, alone) == expected, what="all counts")
    assert len(kafka.read(topics.bootstrap, alone)) >= len(expected)
