"""Reports say how a worker is doing, and never hold it up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.supervise.worker_reports import (
    Activity,
    Loaded,
    Reporter,
    ReportPipe,
    Status,
    decode,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


STATUS = Status("running", 3, 10, 20, 1_000, 5, 0.25, 7.5)


def _lines(file: int) -> list[bytes]:
    os.set_blocking(file, False)
    data = b""
    with suppress(BlockingIOError):
        while chunk := os.read(file, 1 << 20):
            data += chunk
    assert data == b"" or data.endswith(b"\n"), "a torn line"
    return data.splitlines()


def test_reports_arrive_as_they_were_sent(pipe: tuple[int, int]) -> None:
    sender = ReportPipe(pipe[1])
    reports = [Loaded("app", 5_000), STATUS]
    assert all(sender.send(report) for report in reports)
    assert [decode(line) for line in _lines(pipe[0])] == reports


def test_a_reader_that_does_not_read_holds_nobody_up_and_tears_no_line(
    pipe: tuple[int, int],
) -> None:
    sender = ReportPipe(pipe[1])
    for number in range(20_000):
        assert sender.send(Loaded("app", number))
    lines = [decode(line) for line in _lines(pipe[0])]
    assert 0 < len(lines) < 20_000
    assert lines == [Loaded("app", number) for number in range(len(lines))]
    assert sender.send(STATUS)
    assert [decode(line) for line in _lines(pipe[0])] == [STATUS]


def test_a_report_that_cannot_be_written_whole_is_dropped(pipe: tuple[int, int]) -> None:
    assert ReportPipe(pipe[1]).send(Loaded("a" * 100_000, 1))
    assert _lines(pipe[0]) == []


def test_a_reader_that_is_gone_is_noticed_and_does_no_harm(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    assert not ReportPipe(pipe[1]).send(STATUS)


def test_a_reporter_ends_when_nobody_reads(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    asked = threading.Event()

    def status() -> Status:
        asked.set()
        return STATUS

    reporter = Reporter(ReportPipe(pipe[1]), status, every_s=0.001)
    with reporter:
        assert asked.wait(10)
        reporter._thread.join(10)
        assert not reporter._thread.is_alive()


def test_a_reporter_sends_how_things_are_now_and_once_more_at_the_end(
    pipe: tuple[int, int],
) -> None:
    asked = threading.Event()
    processed = 1

    def status() -> Status:
        asked.set()
        return replace(STATUS, processed=processed)

    with Reporter(ReportPipe(pipe[1]), status, every_s=2):
        assert asked.wait(10)
        processed = 2
    found = [decode(line) for line in _lines(pipe[0])]
    assert found[-1] == replace(STATUS, processed=2)


def test_activity_counts_tasks_commits_and_their_age() -> None:
    clock = Clock()
    activity = Activity(clock)
    assert activity.status("created", 0) == Status("created", 0, 0, 0, 0, 0, None, 100.0)
    activity.on_assignment([TaskId(0, 1), TaskId(1, 1)])
    activity.on_commit([TaskId(0, 1)], 5)
    clock.now_s += 2.5
    assert activity.status("running", 9) == Status("running", 2, 0, 0, 9, 1, 2.5, 102.5)


def test_activity_adds_up_the_restores_under_way() -> None:
    activity = Activity(Clock())
    one, other = TopicPartition("changelog", 0), TopicPartition("changelog", 1)
    activity.on_assignment([TaskId(0, 0), TaskId(0, 1)])
    activity.on_restore_start(one, "store", 100, 300)
    activity.on_restore_start(other, "store", 0, 50)
    activity.on_batch_restored(one, "store", 220, 7)
    assert _restores(activity) == (120, 250)
    activity.on_batch_restored(one, "store", 999, 7)
    assert _restores(activity) == (200, 250)
    activity.on_restore_end(one, "store", 14)
    assert _restores(activity) == (0, 50)


def test_restores_of_tasks_that_left_do_not_stay() -> None:
    activity = Activity(Clock())
    activity.on_restore_start(TopicPartition("changelog", 0), "store", 0, 10)
    activity.on_restore_start(TopicPartition("changelog", 1), "store", 0, 10)
    activity.on_assignment([TaskId(0, 1)])
    assert _restores(activity) == (0, 10)
    activity.on_running()
    assert _restores(activity) == (0, 0)
    activity.on_batch_restored(TopicPartition("changelog", 1), "store", 5, 1)
    assert _restores(activity) == (0, 0)


def _restores(activity: Activity) -> tuple[int, int]:
    status = activity.status("", 0)
    return status.restored, status.to_restore
