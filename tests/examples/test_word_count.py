"""examples/word_count.py, as a newcomer runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.word_count import word_count
from headrace.streams import TopologyTestDriver, serdes
from headrace.streams.supervisor.app_loader import load_app
from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT, wait_until
from tests.support.topics import Topics

LINES = ["a rose is a rose", "a daisy is not", ""]
COUNTS = {"a": 3, "rose": 2, "is": 2, "daisy": 1, "not": 1}


def test_it_counts_words() -> None:
    with TopologyTestDriver(word_count()) as driver:
        for line in LINES:
            driver.input("sentences").send(None, line)
        assert driver.output("word-counts").as_dict() == COUNTS


def test_headrace_run_finds_it() -> None:
    app = load_app("examples.word_count:app")
    assert app.config.application_id == "word-count"
    assert app.config.exactly_once


@contextmanager
def _running(options: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "examples.word_count", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _counts(bootstrap: str, topic: str) -> dict[str, int]:
    """The last count of each word; a record without key or value would fail here."""
    return {
        serdes.string.deserialize(record.key or b"?"): serdes.long.deserialize(record.value or b"")
        for record in kafka.read(bootstrap, topic)
    }


def test_it_runs_on_kafka_and_ends_cleanly_on_sigterm(topics: Topics, tmp_path: Path) -> None:
    sentences, counts = topics.create("sentences", partitions=2), topics.create("counts")
    options = {
        "bootstrap-servers": topics.bootstrap,
        "application-id": topics.name("word-count"),
        "sentences": sentences,
        "word-counts": counts,
        "state-dir": str(tmp_path / "state"),
    }
    kafka.write(topics.bootstrap, sentences, [(None, line.encode()) for line in LINES])
    log = tmp_path / "log"
    with _running(options, log) as process:
        wait_until(
            lambda: _counts(topics.bootstrap, counts) == COUNTS or process.poll() is not None,
            what=f"all counts; {log}",
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    assert _counts(topics.bootstrap, counts) == COUNTS


def test_a_missing_topic_is_named_without_a_traceback(broker: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.word_count", f"--bootstrap-servers={broker}"]
    options = ["--sentences=no-such-topic", f"--state-dir={tmp_path}"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no-such-topic" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["word_count.py", "demo.py"])
def test_help_needs_no_kafka(name: str) -> None:
    module = f"examples.{Path(name).stem}"
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:6]) == (0, "Usage:"), done.stderr
