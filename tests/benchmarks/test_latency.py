"""Benchmark of latency: commands of runners, the table of results, and the load."""

from __future__ import annotations

import time
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from benchmarks.latency import LoadGenerator, headrace_runner
from benchmarks.peers.peer import RunSpec
from benchmarks.report import latency_table
from benchmarks.results import Latency

SPEC = RunSpec("stateless", "b:1", "run", "run", "out", Path("state"))


def table_text(p50: float, broker_cpu: float | None) -> str:
    runs = [
        Latency("stateless", "headrace", 1000, p50 + n, 1, 2, 3, 4, 70 + n, 0.1, broker_cpu)
        for n in range(3)
    ]
    console = Console(file=StringIO(), width=200)
    console.print(latency_table(runs))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_row_has_the_median_minimum_and_maximum_of_the_rounds() -> None:
    assert "6.5 (5.5-7.5)" in table_text(5.5, 0.4)
    assert "71 (70-72)" in table_text(5.5, 0.4)


def test_a_cluster_that_was_not_started_here_has_no_cpu_time() -> None:
    assert "0.40" in table_text(5.5, 0.4)
    assert "0.40" not in table_text(5.5, None)


def test_another_checkout_runs_with_its_own_python() -> None:
    runner = headrace_runner(["a=1"], Path("/other"))
    command = runner.command(SPEC)
    assert command[:3] == ["/other/.venv/bin/python", "-m", "benchmarks.service"]
    assert command[-2:] == ["--set", "a=1"]
    assert runner.name == "headrace of /other a=1"


class Client:
    """Polls for whole milliseconds only, as librdkafka does."""

    def __init__(self) -> None:
        self.sent = self.polls = 0

    def produce(self, topic: str, value: bytes, key: bytes) -> None:
        self.sent += 1

    def poll(self, timeout_s: float) -> None:
        self.polls += 1
        time.sleep(int(timeout_s * 1000) / 1000)

    def flush(self, timeout_s: float) -> None:
        pass


def test_the_load_generator_pauses_between_batches() -> None:
    client = Client()
    with patch("benchmarks.latency.Producer", return_value=client):
        LoadGenerator("b:1", "in", 1000, 0.5)._run()
    assert client.sent == 500
    assert client.polls <= 4 * client.sent
