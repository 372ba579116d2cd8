"""The public function, with Spark and a broker: from a plan to an application that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import CannotBackfillError, backfill
from headrace.spark_bridge.handover.handover import HandoverReport
from tests.spark_bridge.support.handed import Handed
from tests.support.processes import AppProcess
from tests.support.topics import Topics

LINES = 100


@pytest.fixture
def handed(topics: Topics, tmp_path: Path) -> Handed:
    made = Handed(topics, tmp_path)
    made.write(LINES)
    return made


@pytest.mark.parametrize("handover", ["auto", "partitioned"])
def test_a_backfill_is_handed_over_and_the_application_goes_on(
    spark: Any, handed: Handed, handover: Any
) -> None:
    """Little is handed over by the driver where nobody says how."""
    report = backfill(handed.topology, handed.settings, spark=spark, handover=handover, id="bf-1")
    assert isinstance(report.handover, HandoverReport)
    assert report.handover.how == ("driver" if handover == "auto" else "partitioned")
    assert report.keys == len(handed.words)
    assert report.outputs == sum(handed.words.values()) == report.handover.counts.sink
    handed.check_recount()
    handed.go_on_live()
    # The same once more finds that it is done; Spark is not asked.
    again = backfill(handed.topology, handed.settings, spark=None, id="bf-1")
    assert again.plan == report.plan
    assert again.handover is None


def test_counts_that_are_combined_are_handed_over_and_live_goes_on(
    spark: Any, handed: Handed
) -> None:
    """The state is that of single records; a word has one output of each task that counted it."""
    backfill(handed.topology, handed.settings, spark=spark, order="combine")
    assert handed.state() == dict(handed.words)
    before = handed.outputs()
    assert {word: counts[-1] for word, counts in before.items()} == dict(handed.words)
    assert max(map(len, before.values())) == 2 < max(handed.words.values())
    handed.write(30, live=True)
    handed.catch_up()
    assert handed.state() == dict(handed.words)
    for word, counts in handed.outputs().items():
        known = before.get(word, [0])
        assert counts == [*before.get(word, []), *range(known[-1] + 1, handed.words[word] + 1)]


def test_a_resume_with_everything_written_needs_no_spark(handed: Handed, tmp_path: Path) -> None:
    first = AppProcess({**handed.told, "id": "bf-1", "step": "handover_written"},
                       tmp_path / "driver.log",
                       "tests.spark_bridge.support.handover_driver_process")  # fmt: skip
    assert first.wait() == 77, first.text()[-4000:]
    report = backfill(handed.topology, handed.settings, spark=None, id="bf-1")
    assert report.handover.found == report.handover.units == 4
    handed.check_recount()
    handed.go_on_live()


def test_a_resume_reads_the_plan_back_and_writes_the_rest(
    spark: Any, handed: Handed, tmp_path: Path
) -> None:
    """What came into the topics meanwhile is the live application's."""
    first = AppProcess({**handed.told, "id": "bf-1", "step": "unit_2"},
                       tmp_path / "driver.log",
                       "tests.spark_bridge.support.handover_driver_process")  # fmt: skip
    assert first.wait() == 77, first.text()[-4000:]
    handed.write(10, live=True)
    with pytest.raises(CannotBackfillError, match="--id bf-1"):
        backfill(handed.topology, handed.settings, spark=spark, id="bf-2")
    report = backfill(handed.topology, handed.settings, spark=spark, id="bf-1", order="exact")
    assert (report.handover.found, report.handover.units) == (3, 4)
    handed.go_on_live()
