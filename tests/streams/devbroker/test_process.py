"""A node's process: none runs that the broker's directory does not know of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from headrace.streams.devbroker.process import ProcessIdentity, is_alive, launch, wait_until_ended
from tests.support.processes import IMPORT_PATH, wait_until

BEGINS = "import pathlib, time; pathlib.Path('began').touch(); time.sleep(60)"
KILLED = f"""
import os, pathlib, signal, sys
from headrace.streams.devbroker.process import launch

def recorded(identity):
    pathlib.Path("pid").write_text(f"{{identity.pid}} {{identity.started}}")
    os.kill(os.getpid(), signal.SIGKILL)

command = [sys.executable, "-c", {BEGINS!r}, "token"]
here = pathlib.Path.cwd()
launch(command, token="token", cwd=here, output=here / "output", recorded=recorded)
"""


def test_a_command_begins_once_it_is_written_down(tmp_path: Path) -> None:
    began = tmp_path / "began"
    seen: list[tuple[ProcessIdentity, bool]] = []

    def recorded(identity: ProcessIdentity) -> None:
        # While a process becomes another one, its command line is empty for a moment.
        wait_until(lambda: is_alive(identity), what="the process is there")
        seen.append((identity, began.exists()))

    identity = launch(
        [sys.executable, "-c", BEGINS, "token"],
        token="token",
        cwd=tmp_path,
        output=tmp_path / "output",
        recorded=recorded,
    )
    try:
        assert seen == [(identity, False)]
        wait_until(began.exists, what="the command has begun")
        assert is_alive(identity)
        assert os.readlink(f"/proc/{identity.pid}/fd/0") == os.devnull
    finally:
        os.kill(identity.pid, signal.SIGKILL)
    assert wait_until_ended(identity, timeout=timedelta(seconds=30))


def test_a_command_whose_starter_is_killed_never_begins(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=environ, check=False)
    assert done.returncode == -signal.SIGKILL
    pid, started = (tmp_path / "pid").read_text().split()
    left = ProcessIdentity(int(pid), started, "token")
    assert wait_until_ended(left, timeout=timedelta(seconds=30))
    assert not (tmp_path / "began").exists()
