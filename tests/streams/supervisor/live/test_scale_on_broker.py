"""Workers come and go under load, and each record counts once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.supervised import Counted
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

HEADRACE = [sys.executable, "-P", "-m", "headrace"]


def headrace(*arguments: str) -> str:
    done = subprocess.run([*HEADRACE, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_counts_are_exact_over_one_three_and_one_worker_under_load(
    topics: Topics, tmp_path: Path
) -> None:
    """Those that are too many leave the group at once, though on.stop has them stay."""
    app = Counted(topics, tmp_path, on_stop="stay", consumer_session_timeout_ms=60_000)
    directory = f"--state-dir={tmp_path / 'state'}"
    ended = threading.Event()

    def load() -> None:
        while not ended.wait(0.1):
            app.write(200)

    with app.running(1) as run:
        run.wait_running(1)
        loader = threading.Thread(target=load)
        loader.start()
        try:
            assert "2 workers start" in headrace("scale", "3", directory)
            run.wait_running(3)
            assert len(kafka.members(app.bootstrap, app.group)) == 3
            assert "2 workers close" in headrace("scale", "1", directory)
            run.wait_for("worker_ended", 2, exit_code=ExitCode.STOPPED)
            wait_until(lambda: len(kafka.members(app.bootstrap, app.group)) == 1, what="one member")
        finally:
            ended.set()
            loader.join()
        app.wait_counted(run)
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
        assert {e["exit_code"] for e in run.events("worker_ended")} == {0}
    app.check_exact()


def test_a_level_changes_in_the_supervisor_and_its_workers(topics: Topics, tmp_path: Path) -> None:
    app = Counted(topics, tmp_path)
    directory = f"--state-dir={tmp_path / 'state'}"
    with app.running(1) as run:
        run.wait_running(1)
        assert "error and above" in headrace("log-level", "error", directory)
        before = len(run.text().splitlines())
        headrace("scale", "2", directory)
        wait_until(lambda: len(kafka.members(app.bootstrap, app.group)) == 2, what="two members")
        assert [
            line for line in run.text().splitlines()[before:] if '"level": "info"' in line
        ] == []
        headrace("log-level", "info", directory)
        run.wait_for("status_reported")
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
        assert run.events("state_changed")[-1]["new"] == "not running"
