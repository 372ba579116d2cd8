"""An application that is started while Spark computes: the hand-over refuses, whatever it did.

The gate is closed while a hand-over is open, and not before: until then nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import CannotBackfillError, backfill
from tests.spark_bridge.support.handed import Handed
from tests.spark_bridge.support.ways import find
from tests.support import kafka
from tests.support.live import live
from tests.support.topics import Topics

LINES = 60
RECORDS_A_LINE = 5
BOTH = pytest.mark.parametrize("handover", ["driver", "partitioned"])


class Meanwhile:
    """Starts the application behind the first stage of a backfill, lets it commit, and keeps it."""

    def __init__(self, handed: Handed, running: ExitStack, *, stop: bool) -> None:
        self._handed = handed
        self._running = running
        self._stop = stop
        self.started = False

    def __call__(self, _: object) -> None:
        if self.started:
            return
        self.started = True
        app = self._running.enter_context(live(self._handed.topology, self._handed.settings))
        app.wait_processed(LINES * RECORDS_A_LINE)
        if self._stop:
            self._running.close()


@pytest.fixture
def handed(topics: Topics, tmp_path: Path) -> Handed:
    made = Handed(topics, tmp_path)
    made.write(LINES)
    return made


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run(spark: Any, handed: Handed, meanwhile: Meanwhile, **more: Any) -> None:
    backfill(handed.topology, handed.settings, spark=spark, id="bf-1", on_stage=meanwhile, **more)


def check_live_alone(handed: Handed) -> None:
    """State, sink and offsets are the application's, and no plan keeps it from starting."""
    handed.check_recount()
    assert find(handed.application, "bf-1").plan is None
    uncommitted = kafka.read(handed.bootstrap, handed.sink, "read_uncommitted")
    assert len(uncommitted) == handed.words.total(), "something of the backfill was written"


@BOTH
def test_an_application_that_was_started_meanwhile_keeps_what_it_did(
    spark: Any, handed: Handed, running: ExitStack, handover: Any
) -> None:
    meanwhile = Meanwhile(handed, running, stop=True)
    with pytest.raises(CannotBackfillError, match=r"has already committed offsets .*reset=True"):
        run(spark, handed, meanwhile, handover=handover)
    assert meanwhile.started
    check_live_alone(handed)


@BOTH
def test_an_application_that_runs_is_not_replaced_either(
    spark: Any, handed: Handed, running: ExitStack, handover: Any
) -> None:
    """It has to be stopped; then its state and its offsets are replaced."""
    meanwhile = Meanwhile(handed, running, stop=False)
    with pytest.raises(CannotBackfillError, match="Stop all its workers"):
        run(spark, handed, meanwhile, handover=handover, reset=True)
    assert meanwhile.started
    running.close()
    check_live_alone(handed)
    run(spark, handed, meanwhile, handover=handover, reset=True)
    assert handed.state() == dict(handed.words)
    assert handed.offsets() == kafka.ends(handed.bootstrap, handed.source)
