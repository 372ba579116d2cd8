"""Applications in processes of their own: start, kill, stop, and wait for what they do."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
IMPORT_PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
"""Where a process of a test imports the project and the examples from."""


class AppProcess:
    """An application in a process, its output in a file.

    Args:
        plan: what it is told, as JSON.
        log: where its output goes.
        module: what to run.
    """

    def __init__(
        self, plan: dict[str, Any], log: Path, module: str = "tests.support.count_app"
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(plan)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP holds it."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    @property
    def _listens(self) -> bool:
        """Whether it has a handler for SIGTERM, which one that still loads has not."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Wait for the end; returns the exit status, minus the signal's number if it was one."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still running after {seconds} s:\n{self.text()[-4000:]}"
            ) from None

    def pause(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, once it is listened for, and a clean end."""
        wait_until(lambda: not self.running or self._listens, what="it listens for SIGTERM")
        self._process.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.text()[-4000:]

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def reports(self, kind: str) -> list[dict[str, Any]]:
        """The lines that the restore listener wrote."""
        lines = [line for line in self.text().splitlines() if line.startswith("{")]
        return [found for line in lines if kind in (found := json.loads(line))]


@contextmanager
def running(
    plan: dict[str, Any], log: Path, module: str = "tests.support.count_app"
) -> Iterator[AppProcess]:
    """Run an application; whatever happens, its process is gone afterwards."""
    process = AppProcess(plan, log, module)
    try:
        yield process
    finally:
        if process.running:
            process.kill()


@contextmanager
def full_pipe() -> Iterator[int]:
    """A pipe that is full and has no active reader; yields the end to write to."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write_end, b"x" * 4095)
    try:
        yield write_end
    finally:
        os.close(write_end)
        os.close(read_end)


def wait_until(
    condition: Callable[[], bool],
    *,
    seconds: float = PATIENCE_S,
    what: str | Callable[[], str] = "",
) -> None:
    """Wait for a condition; check it often, but for at most half of the time.

    Args:
        condition: the condition.
        seconds: time limit.
        what: description of the condition; a function is called if the time limit is exceeded.
    """
    deadline = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            described = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {described}")
        # To read a whole topic takes long where much is there: others need the processor too.
        time.sleep(max(0.1, now - begun))
