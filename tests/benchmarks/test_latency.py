"""Latency: who is measured, and how its table sums up rounds."""

from __future__ import annotations

import time
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from benchmarks.latency import Feed, headrace_runner
from benchmarks.peers.peer import RunSpec
from benchmarks.report import latency_table
from benchmarks.results import Latency

ORDER = RunSpec("stateless", "b:1", "run", "run", "out", Path("state"))


def told(p50: float, broker_cpu: float | None) -> str:
    runs = [
        Latency("stateless", "headrace", 1000, p50 + n, 1, 2, 3, 4, 70 + n, 0.1, broker_cpu)
        for n in range(3)
    ]
    console = Console(file=StringIO(), width=200)
    console.print(latency_table(runs))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_row_has_the_median_of_the_rounds_and_how_far_they_are_apart() -> None:
    assert "6.5 (5.5-7.5)" in told(5.5, 0.4)
    assert "71 (70-72)" in told(5.5, 0.4)


def test_a_cluster_of_somebody_else_has_no_cpu_time() -> None:
    assert "0.40" in told(5.5, 0.4)
    assert "0.40" not in told(5.5, None)


def test_another_checkout_runs_with_its_own_python() -> None:
    runner = headrace_runner(["a=1"], Path("/other"))
    command = runner.command(ORDER)
    assert command[:3] == ["/other/.venv/bin/python", "-m", "benchmarks.service"]
    assert command[-2:] == ["--set", "a=1"]
    assert runner.name == "headrace of /other a=1"


class Client:
    """Waits whole milliseconds only, as librdkafka does."""

    def __init__(self) -> None:
        self.sent = self.polls = 0

    def produce(self, topic: str, value: bytes, key: bytes) -> None:
        self.sent += 1

    def poll(self, timeout_s: float) -> None:
        self.polls += 1
        time.sleep(int(timeout_s * 1000) / 1000)

    def flush(self, timeout_s: float) -> None:
        pass


def test_who_feeds_leaves_the_cores_to_those_who_are_measured() -> None:
    client = Client()
    with patch("benchmarks.latency.Producer", return_value=client):
        Feed("b:1", "in", 1000, 0.5)._run()
    assert client.sent == 500
    assert client.polls <= 4 * client.sent
