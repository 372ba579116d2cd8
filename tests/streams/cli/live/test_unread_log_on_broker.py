"""A log that nobody reads: the pipe is full, and neither commits nor signals wait for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka, oracle
from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, full_pipe, wait_until
from tests.support.supervised import COMMAND, Counted, is_alive
from tests.support.topics import Topics

pytestmark = pytest.mark.slow


@contextmanager
def unread(app: Counted) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application with a standard error that is full from the beginning."""
    options = ["--workers=2", "--status-every=0.1", "--log-level=debug", "--log-format=json"]
    with full_pipe() as pipe:
        process = subprocess.Popen(
            [*COMMAND, "my_app:app", *options],
            cwd=app.home,
            env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            stdout=sys.stdout.fileno(),
            stderr=pipe,
            start_new_session=True,
        )
        known = psutil.Process(process.pid)
        try:
            yield process
        finally:
            doomed = [known, *(known.children() if known.is_running() else [])]
            for one in doomed:
                if is_alive(one.pid):
                    one.kill()
            process.wait()


def wait_counted(app: Counted) -> None:
    def counted() -> bool:
        return oracle.last_counts(kafka.read(app.bootstrap, app.output)) == app.expected

    wait_until(counted, what="all counts")


def test_workers_commit_and_a_stop_is_clean(topics: Topics, tmp_path: Path) -> None:
    app = Counted(topics, tmp_path)
    with unread(app) as process:
        for _ in range(3):
            app.write()
            wait_counted(app)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == ExitCode.STOPPED
    app.check_exact()


def test_workers_end_with_their_supervisor(topics: Topics, tmp_path: Path) -> None:
    app = Counted(topics, tmp_path)
    with unread(app) as process:
        app.write()
        wait_counted(app)
        workers = [child.pid for child in psutil.Process(process.pid).children()]
        assert len(workers) == 2
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_alive, workers)), what="no worker is left")
    app.check_exact()


def test_a_feed_writes_rows_and_stops(topics: Topics, tmp_path: Path) -> None:
    topic, file = topics.create("rows"), tmp_path / "rows.jsonl"
    file.touch()
    command = [
        sys.executable, "-m", "headrace", "feed", "--follow", "--skip-bad", "--files", str(file),
        "--to", topic,
        "--name", topics.name("feed"), "--bootstrap-servers", topics.bootstrap,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    with (
        full_pipe() as pipe,
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=pipe) as process,
    ):
        try:
            for round_number in range(3):
                with file.open("a") as out:
                    out.write(f"bad\n{json.dumps({'n': round_number})}\n")
                wanted = round_number + 1
                wait_until(
                    lambda wanted=wanted: len(kafka.read(topics.bootstrap, topic)) == wanted,  # type: ignore[misc]
                    what="a row",
                )
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == ExitCode.STOPPED
        finally:
            process.kill()
