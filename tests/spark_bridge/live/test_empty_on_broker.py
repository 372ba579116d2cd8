"""History in which nothing goes through a repartition topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import backfill
from tests.spark_bridge.live.test_inputs_on_broker import Case
from tests.spark_bridge.support.handed import Handed
from tests.support import kafka
from tests.support.live import live
from tests.support.topics import Topics


@pytest.mark.parametrize(
    ("empty", "handover"),
    [
        ("topic", "driver"),
        ("lines", "partitioned"),
        pytest.param("topic", "partitioned", marks=pytest.mark.long),
        pytest.param("lines", "driver", marks=pytest.mark.long),
    ],
)
def test_a_history_without_words_is_handed_over(
    spark: Any, topics: Topics, tmp_path: Path, handover: Any, empty: str
) -> None:
    """Spark leaves out tasks that get no records; theirs tell the progress all the same."""
    handed = Handed(topics, tmp_path)
    if empty == "lines":
        kafka.write(topics.bootstrap, handed.source, [(None, b""), (None, b" "), (None, b"")])
    report = backfill(handed.topology, handed.settings, spark=spark, handover=handover)
    assert report.keys == 0
    assert handed.offsets() == kafka.ends(topics.bootstrap, handed.source)
    handed.write(10)
    with live(handed.topology, handed.settings) as app:
        app.wait(lambda: handed.state() == dict(handed.words), what="the words of ten lines")
    handed.check_recount()


@pytest.mark.parametrize("archived", ["events", "table"])
def test_files_may_begin_the_history_of_one_topic_of_several(
    spark: Any, topics: Topics, tmp_path: Path, archived: str
) -> None:
    """A sub-topology whose topics have no archive reads Kafka."""
    case = Case(topics, tmp_path, 2)
    for fate in ("plain", "aborted", "committed"):
        case.input.write(fate, case.input.batch(void=fate == "aborted"))
    topic = getattr(case.input, archived)
    options = {"topic": topic, "bootstrap.servers": case.bootstrap, "compacted": "false"}
    spark.read.format("changelog").options(**options).load().write.parquet(f"{tmp_path}/archive")
    archive = spark.read.parquet(f"{tmp_path}/archive")
    backfill(case.topology, case.settings, spark=spark, source={topic: archive})
    case.check(case.expected(case.input.decided()))
