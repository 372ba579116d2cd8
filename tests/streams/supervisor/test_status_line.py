"""What people see of the workers."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

from headrace.streams.supervisor.status_line import (
    LoggedStatus,
    StatusLine,
    WorkerStatus,
    cells,
    fields,
)
from headrace.streams.supervisor.worker_reports import Status
from tests.support.snapshots import worker_snapshot

FIRST = Status("restoring", 3, 50, 200, 1_000, 10, 0.5, at_s=100.0)


def _worker(*statuses: Status, now_s: float = 7.0) -> WorkerStatus:
    worker = WorkerStatus(1)
    worker.started(4_711)
    for status in statuses:
        worker.reported(status, now_s)
    return worker


class Log:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def info(self, event: str, /, **fields: Any) -> None:
        assert event == "status_reported"
        self.events.append(fields)

    warning = error = info


def test_rates_are_those_of_the_last_seconds() -> None:
    worker = WorkerStatus(0)
    worker.started(1)
    for second in range(60):
        rate = 100 if second < 30 else 200
        processed = rate * second if second < 30 else 3_000 + 200 * (second - 30)
        worker.reported(replace(FIRST, processed=processed, commits=2 * second, at_s=second), 0)
    assert worker.records_per_s(0) == 200
    assert worker.commits_per_s(0) == 2


def test_one_report_is_no_rate() -> None:
    assert _worker(FIRST).records_per_s(7) == 0
    assert _worker(FIRST, FIRST).records_per_s(7) == 0


def test_a_worker_that_is_not_heard_of_has_no_rate() -> None:
    worker = _worker(FIRST, replace(FIRST, processed=2_500, commits=14, at_s=102), now_s=7.0)
    assert fields(worker, 8.0)["records_per_s"] == 750
    silent = fields(worker, 7.0 + 70)
    assert (silent["records_per_s"], silent["commits_per_s"], silent["records"]) == (0, 0, 2_500)
    assert cells(worker, 7.0 + 70)[5:7] == ["0", "0.0"]


def test_a_commit_grows_old_between_reports() -> None:
    worker = _worker(FIRST, now_s=7.0)
    assert worker.commit_age_s(7.0) == 0.5
    assert worker.commit_age_s(9.5) == 3.0
    assert _worker(replace(FIRST, commit_age_s=None)).commit_age_s(9.5) is None


def test_what_an_ended_process_did_is_not_shown_for_the_next() -> None:
    worker = _worker(FIRST, replace(FIRST, processed=2_000, at_s=101))
    worker.ended("killed by SIGKILL")
    worker.started(4_712)
    worker.reported(replace(FIRST, processed=5, at_s=102), 8.0)
    assert worker.records_per_s(8) == 0


def test_a_row_has_all_facts() -> None:
    worker = _worker(FIRST, replace(FIRST, processed=2_500, commits=14, at_s=102))
    worker.restarts = 2
    row = ["1", "4711", "restoring", "3", "25 %", "750", "2.0", "1.5 s ago", "2"]
    assert cells(worker, now_s=8.0) == row


def test_a_row_of_a_worker_that_is_not_there_yet_is_short() -> None:
    assert cells(WorkerStatus(0), now_s=0.0) == ["0", "", "waiting", "", "", "", "", "", ""]


def test_the_table_is_drawn_below_what_is_written() -> None:
    terminal = io.StringIO()
    line = StatusLine(terminal, width=100)
    line.show([_worker(FIRST)], now_s=7.0)
    line.print("\x1b[31mtask_started\x1b[0m {not: markup} [bold]")
    line.write("one\ntwo\n")
    line.show([_worker(replace(FIRST, state="running"))], now_s=8.0)
    line.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "records/s" in text
    assert text.index("restoring") < text.index("task_started {not: markup} [bold]")
    assert text.index("two") < text.rindex("running")


def test_the_table_is_not_drawn_at_every_turn() -> None:
    terminal = io.StringIO()
    line = StatusLine(terminal, width=100)
    line.show([_worker(FIRST)], now_s=7.0)
    size = len(terminal.getvalue())
    line.show([_worker(FIRST)], now_s=7.1)
    assert len(terminal.getvalue()) == size
    line.close()


def test_a_terminal_that_is_gone_is_no_error() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    line = StatusLine(Gone(), width=100)
    for now_s in (7.0, 8.0):
        line.show([_worker(FIRST)], now_s)
        line.write("text\n")
    line.close()


def test_where_there_is_no_terminal_status_is_logged_now_and_then() -> None:
    log = Log()
    display = LoggedStatus(log, every_s=10)
    for now_s in range(35):
        display.show([_worker(FIRST), WorkerStatus(0)], now_s=float(now_s))
    assert len(log.events) == 3 * 2
    first = log.events[0]
    assert (first["worker_index"], first["state"], first["tasks"]) == (1, "restoring", 3)
    assert (first["restored"], first["to_restore"]) == (50, 200)
    assert log.events[1] == {"worker_index": 0, "state": "waiting"}


def test_no_status_is_logged_when_none_is_wanted() -> None:
    log = Log()
    display = LoggedStatus(log, every_s=0)
    for now_s in range(35):
        display.show([_worker(FIRST)], now_s=float(now_s))
    assert log.events == []


def test_a_worker_that_is_frozen_is_silent() -> None:
    worker = _worker(replace(FIRST, state="running"))
    worker.snapshot = worker_snapshot()
    states = [cells(worker, now_s)[2] for now_s in (110.0, 110.5)]
    assert states == ["running", "unresponsive"]
    assert fields(worker, 110.5)["state"] == "unresponsive"
