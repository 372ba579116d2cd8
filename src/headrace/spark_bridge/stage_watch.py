"""Watch over the Spark job of a stage: progress in the log, and an early end if a record fails.

A record that cannot be processed fails in every attempt of its Spark task. So the task reports the
error and succeeds, and the driver cancels the job. Other errors are raised, and Spark repeats the
task. The error is also a row of the job: a frame that is computed again outside of the job of its
stage raises it instead, because the driver does not collect the row there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from headrace.state.log import get_logger

PROGRESS_S = 30.0
"""Seconds between two log events of a running stage."""
_POLL_S = 0.5
_PROPERTY = "headrace.backfill.stage"
"""Property of Spark jobs whose driver collects the failed tasks of a stage."""


class SparkTaskReport(NamedTuple):
    """Report of a finished task to the driver; `error` is None if all records were processed."""

    partition: int
    records: int
    error: str | None = None


class SparkTaskReports:
    """Reports of the finished tasks of all stages; empty without a JVM, as in Spark Connect."""

    def __init__(self, spark: Any) -> None:
        self.context: Any = None
        self._reports: Any = None
        with suppress(Exception):  # a client of Spark Connect has no SparkContext
            self.context = spark.sparkContext
            self._reports = self.context.accumulator((), _param())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._reports,)

    def add(self, report: SparkTaskReport) -> None:
        if self._reports is not None:
            self._reports.add((report,))

    @property
    def all(self) -> tuple[SparkTaskReport, ...]:
        return () if self._reports is None else self._reports.value


def _unpickled(reports: Any) -> SparkTaskReports:
    made = SparkTaskReports.__new__(SparkTaskReports)
    made.context, made._reports = None, reports
    return made


def _param() -> Any:
    from pyspark.accumulators import AddingAccumulatorParam

    return AddingAccumulatorParam(())


def returns_errors(context: Any, stage: Sequence[int]) -> bool:
    """Return whether the driver collects the errors of this stage from its Spark tasks."""
    found = context.getLocalProperty(_PROPERTY)
    return bool(found == _text(stage))


def _text(stage: Sequence[int]) -> str:
    return "+".join(map(str, stage))


@contextmanager
def watched(
    reports: SparkTaskReports, backfill_id: str, stage: Sequence[int], tasks: int
) -> Iterator[list[SparkTaskReport]]:
    """Watch the job that the block runs; the list has the failed tasks after the block.

    The job is canceled after the first failed task, so the block may raise an error of Spark.
    """
    log = get_logger().bind(backfill=backfill_id, sub_topologies=_text(stage), tasks=tasks)
    log.info("stage_started")
    before, begun = len(reports.all), time.monotonic()
    failed: list[SparkTaskReport] = []
    ended = threading.Event()
    tag = f"headrace-{backfill_id}-{_text(stage)}"

    def new() -> tuple[SparkTaskReport, ...]:
        return reports.all[before:]

    def done() -> int:
        return sum(report.records for report in new())

    def seconds() -> float:
        return round(time.monotonic() - begun, 1)

    def watch() -> None:
        next_s = begun + PROGRESS_S
        while not ended.wait(_POLL_S):
            if any(report.error is not None for report in new()):
                reports.context.cancelJobsWithTag(tag)
                return
            if time.monotonic() >= next_s:
                next_s += PROGRESS_S
                log.info(
                    "stage_progressed",
                    finished_tasks=len(new()),
                    records=done(),
                    seconds=seconds(),
                )

    thread = threading.Thread(target=watch, name="headrace-stage-watch", daemon=True)
    with _tagged(reports.context, stage, tag):
        thread.start()
        try:
            yield failed
        finally:
            ended.set()
            thread.join()
            failed += sorted(report for report in new() if report.error is not None)
    log.info("stage_finished", records=done(), seconds=seconds())


@contextmanager
def _tagged(context: Any, stage: Sequence[int], tag: str) -> Iterator[None]:
    if context is None:
        yield
        return
    context.addJobTag(tag)
    context.setLocalProperty(_PROPERTY, _text(stage))
    try:
        yield
    finally:
        context.removeJobTag(tag)
        context.setLocalProperty(_PROPERTY, None)
