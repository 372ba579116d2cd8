"""`make demo`: it proves what it says, says when a count is wrong, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headrace.streams.devbroker import DevBroker
from tests.support import kafka
from tests.support.processes import ROOT, wait_until
from tests.support.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

LINES = 60_000
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    choose = random.Random(0)
    words = [f"word{number}" for number in range(3_000)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(" ".join(choose.choices(words, k=8)) for _ in range(LINES)))
    return path


class DemoProcess:
    """`python -m examples.demo` in a process, its output in a file."""

    def __init__(self, log: Path, *options: str) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo", *options],
                cwd=ROOT,
                env={**os.environ, "COLUMNS": "300"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        try:
            return self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {TIMEOUT_S} s:\n{self.said()}") from None

    def pids(self) -> list[int]:
        """The word counts that it started."""
        return [int(pid) for pid in re.findall(r"Started process (\d+)", self.said())]


@contextmanager
def demo(log: Path, *options: str) -> Iterator[DemoProcess]:
    running = DemoProcess(log, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            # It stops its broker by itself, unless it hangs.
            running.process.terminate()
            try:
                running.process.wait(60)
            except subprocess.TimeoutExpired:
                running.process.kill()


def number(pattern: str, said: str) -> int:
    found = re.search(pattern, said)
    assert found, said
    return int(found[1].replace(",", ""))


def test_the_kill_hits_an_open_transaction_and_every_count_is_right(
    topics: Topics, text: Path, tmp_path: Path
) -> None:
    name = topics.name("demo")
    options = ("--bootstrap-servers", topics.bootstrap, "--name", name)
    with demo(tmp_path / "log", *options, "--file", str(text), "--dir", str(tmp_path)) as running:
        assert running.wait() == 0, running.said()
        said = running.said()
    assert f"Every count is right: 3,000 different words, {LINES * 8:,} in all" in said
    # Some was committed at the kill, not all, and there was more in an open transaction.
    assert 0 < number(r"([\d,]+) words counted", said) < 160_000
    opened = number(r"([\d,]+) more records stand in an open transaction", said)
    assert number(r"The ([\d,]+) aborted records", said) == opened > 0
    assert len(running.pids()) >= 2
    assert not any(map(psutil.pid_exists, running.pids()))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert topics.partitions(f"{name}-sentences") == 0


@pytest.mark.long
def test_a_wrong_count_is_named_and_fails_the_demo(
    topics: Topics, text: Path, tmp_path: Path
) -> None:
    """Somebody else writes to the topic, so that the counts cannot equal the recount."""
    name = topics.name("demo")
    options = ("--bootstrap-servers", topics.bootstrap, "--name", name)
    with demo(tmp_path / "log", *options, "--file", str(text), "--dir", str(tmp_path)) as running:
        wait_until(lambda: topics.partitions(f"{name}-sentences") > 0, what=running.said())
        kafka.write(topics.bootstrap, f"{name}-sentences", [(None, b"intruder")] * 10)
        assert running.wait() == 1, running.said()
    assert "counts are wrong" in running.said()
    assert "intruder: counted 10, recounted 0" in running.said()


def test_ctrl_c_leaves_no_process_behind(topics: Topics, text: Path, tmp_path: Path) -> None:
    options = ("--bootstrap-servers", topics.bootstrap, "--name", topics.name("demo"))
    with demo(tmp_path / "log", *options, "--file", str(text), "--dir", str(tmp_path)) as running:
        wait_until(
            lambda: bool(running.pids()) or running.process.poll() is not None,
            seconds=TIMEOUT_S,
            what="the word count starts",
        )
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 130, running.said()
    assert running.pids()
    assert not any(map(psutil.pid_exists, running.pids()))


@pytest.mark.long
def test_ctrl_c_stops_the_broker_of_the_demo_and_the_next_run_succeeds(
    text: Path, tmp_path: Path
) -> None:
    """On a Kafka of the demo's own, which keeps its directory from one run to the next."""
    options = ("--file", str(text), "--dir", str(tmp_path / "demo"))
    broker = DevBroker(tmp_path / "demo" / "broker")
    with demo(tmp_path / "first", *options) as running:
        wait_until(
            lambda: bool(running.pids()) or running.process.poll() is not None,
            seconds=TIMEOUT_S,
            what="the word count starts",
        )
        assert broker.status().serving
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 130, running.said()
    assert not any(map(psutil.pid_exists, running.pids()))
    assert [node.pid for node in broker.status().nodes] == [None]
    with demo(tmp_path / "second", *options) as running:
        assert running.wait() == 0, running.said()
    assert "Every count is right" in running.said()
    assert [node.pid for node in broker.status().nodes] == [None]


def test_a_second_demo_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    """It would stop the first one's Kafka at its end."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with demo(tmp_path / "log", "--dir", str(tmp_path)) as running:
            assert running.wait() == 1
    assert "another demo runs" in running.said()


def test_it_stays_with_its_page_where_that_is_asked_for(topics: Topics, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("\n".join(["a rose is a rose"] * 50))
    options = ("--bootstrap-servers", topics.bootstrap, "--name", topics.name("demo"), "--stay")
    home = tmp_path / "home"
    with demo(tmp_path / "log", *options, "--file", str(text), "--dir", str(home)) as running:
        wait_until(lambda: "Ctrl-C ends it." in running.said(), seconds=TIMEOUT_S, what="the page")
        said = running.said()
        assert "Every count is right" in said
        (page,) = re.findall(r"^  (http://\S+/)$", said, re.M)

        def roses() -> int:
            try:
                with urllib.request.urlopen(f"{page}api/stores/counts/rose", timeout=60) as found:
                    return int(json.load(found)["value"])
            except urllib.error.HTTPError as error:
                error.close()
                return 0

        # It counts on.
        wait_until(lambda: roses() > 100, seconds=TIMEOUT_S, what="more roses")
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 0, running.said()
    assert not (home / "state").exists()
