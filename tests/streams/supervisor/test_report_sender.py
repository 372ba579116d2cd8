"""Reports reach the supervisor whole, and hold no worker up."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.streams.supervisor.worker_reports import (
    Loaded,
    MetricsReport,
    Reporter,
    ReportSender,
    Status,
    decode,
    encode,
    report_channel,
)
from tests.support.snapshots import worker_snapshot


@pytest.fixture
def channel() -> Iterator[tuple[int, int]]:
    ends = report_channel()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


STATUS = Status("running", 3, 10, 20, 1_000, 5, 0.25, 7.5)


def _read(file: int) -> bytes:
    os.set_blocking(file, False)
    data = b""
    with suppress(BlockingIOError):
        while chunk := os.read(file, 1 << 20):
            data += chunk
    return data


def _lines(file: int) -> list[bytes]:
    data = _read(file)
    assert data == b"" or data.endswith(b"\n"), "a torn line"
    return data.splitlines()


def test_reports_arrive_as_they_were_sent(channel: tuple[int, int]) -> None:
    sender = ReportSender(channel[1])
    reports = [Loaded("app", 5_000), STATUS]
    assert all(sender.send(report) for report in reports)
    assert [decode(line) for line in _lines(channel[0])] == reports


def test_a_reader_that_does_not_read_holds_nobody_up_and_tears_no_line(
    channel: tuple[int, int],
) -> None:
    sender = ReportSender(channel[1])
    for number in range(20_000):
        assert sender.send(Loaded("app", number))
    read = _read(channel[0])
    assert sender.send(STATUS)
    lines = [decode(line) for line in (read + _read(channel[0])).splitlines()]
    assert 0 < len(lines) < 20_000
    assert lines == [*(Loaded("app", number) for number in range(len(lines) - 1)), STATUS]


def test_a_report_of_any_size_arrives_whole(channel: tuple[int, int]) -> None:
    sender, large = ReportSender(channel[1]), Loaded("a" * 3_000_000, 1)
    lines, data = [], b""
    assert sender.send(large)
    os.set_blocking(channel[0], False)
    while not lines:
        with suppress(BlockingIOError):
            while chunk := os.read(channel[0], 1 << 16):
                data += chunk
        *lines, data = data.split(b"\n")
        assert sender.send(STATUS)
    assert decode(lines[0]) == large
    assert {decode(line) for line in lines[1:]} <= {STATUS}


def test_what_is_to_be_said_surely_waits_for_a_large_report(channel: tuple[int, int]) -> None:
    sender = ReportSender(channel[1])
    assert sender.send(Loaded("a" * 3_000_000, 1))
    assert not sender.send_surely(STATUS, within_s=0.05)
    read: list[bytes] = []

    def reads() -> None:
        while data := os.read(channel[0], 1 << 16):
            read.append(data)

    reader = threading.Thread(target=reads)
    reader.start()
    try:
        assert sender.send_surely(STATUS, within_s=60)
    finally:
        os.close(channel[1])
        reader.join(60)
    assert [decode(line) for line in b"".join(read).splitlines()][1:] == [STATUS, STATUS]


def test_nothing_is_said_surely_to_a_reader_that_is_gone(channel: tuple[int, int]) -> None:
    os.close(channel[0])
    assert not ReportSender(channel[1]).send_surely(STATUS)


def test_a_worker_of_many_tasks_is_told_whole(channel: tuple[int, int]) -> None:
    told = MetricsReport(worker_snapshot(tasks=1_000))
    sender = ReportSender(channel[1])
    data = b""
    os.set_blocking(channel[0], False)
    while not data.endswith(b"\n"):
        sender.send(told) if not data else sender.send(STATUS)
        with suppress(BlockingIOError):
            data += os.read(channel[0], 1 << 20)
    assert len(encode(told)) > 50 * select.PIPE_BUF
    assert decode(data.splitlines()[0]) == told


def test_a_reader_that_is_gone_is_noticed_and_does_no_harm(channel: tuple[int, int]) -> None:
    os.close(channel[0])
    assert not ReportSender(channel[1]).send(STATUS)


def test_a_reporter_ends_when_nobody_reads(channel: tuple[int, int]) -> None:
    os.close(channel[0])
    asked = threading.Event()

    def status() -> Status:
        asked.set()
        return STATUS

    reporter = Reporter(ReportSender(channel[1]), status, every_s=0.001)
    with reporter:
        assert asked.wait(10)
        reporter._thread.join(10)
        assert not reporter._thread.is_alive()


def test_a_reporter_sends_how_things_are_now_and_once_more_at_the_end(
    channel: tuple[int, int],
) -> None:
    asked = threading.Event()
    processed = 1

    def status() -> Status:
        asked.set()
        return replace(STATUS, processed=processed)

    with Reporter(ReportSender(channel[1]), status, every_s=2):
        assert asked.wait(10)
        processed = 2
    found = [decode(line) for line in _lines(channel[0])]
    assert found[-1] == replace(STATUS, processed=2)


def test_a_reporter_tells_the_numbers_before_the_status(channel: tuple[int, int]) -> None:
    asked = threading.Event()
    facts = worker_snapshot(tasks=2)

    def status() -> Status:
        asked.set()
        return STATUS

    with Reporter(ReportSender(channel[1]), status, lambda: facts, every_s=2):
        assert asked.wait(10)
    found = [decode(line) for line in _lines(channel[0])]
    assert found == [MetricsReport(facts), STATUS] * 2
