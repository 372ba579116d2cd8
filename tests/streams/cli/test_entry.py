"""A signal that comes while the command is still being loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.processes import IMPORT_PATH

SIGNALLED = """
import os, signal, sys

# Where the tests run in the background, the shell has had them ignore Ctrl-C, or a terminal's end.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

class Signals:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Signals())
sys.argv = ["headrace", {command!r}, "no_such_module:app"]
from headrace.streams.cli.entry import main
main()
"""
LOADED = [
    "headrace.streams.cli.main",
    "click",
    "headrace.streams.cli.run",
    "structlog",
    "headrace.streams.supervisor.worker_handle",
]


def signalled(module: str, number: int, command: str) -> subprocess.CompletedProcess[str]:
    code = SIGNALLED.format(module=module, number=int(number), command=command)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("module", LOADED)
def test_run_ends_cleanly_wherever_it_is_stopped_while_it_loads(
    module: str, number: signal.Signals
) -> None:
    done = signalled(module, number, "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["click", "headrace.streams.cli.mirror"])
def test_mirror_ends_cleanly_too(module: str) -> None:
    done = signalled(module, signal.SIGTERM, "mirror")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_other_commands_end_as_processes_do() -> None:
    """What they would have done was not done, and nobody may take it for done."""
    assert signalled("click", signal.SIGTERM, "reset").returncode == -signal.SIGTERM


LOGGED = """
import atexit, structlog, sys
from headrace.streams.cli.entry import main

def log():
    structlog.get_logger().debug("client_logged")
    structlog.get_logger().warning("topic_grown")

atexit.register(log)
sys.argv = ["headrace", "topics", "--help"]
main()
"""


def test_what_a_command_logs_is_not_among_what_it_prints() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOGGED],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.startswith("Usage: ")
    assert "topic_grown" not in run.stdout
    assert "topic_grown" in run.stderr
    assert "client_logged" not in run.stdout + run.stderr
