"""The word count in a separate process, as a user would start it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_STOP_TIMEOUT_S = 30
_TAIL_LINES = 15


class AppProcess:
    """`python -m examples.word_count` with its output in a file.

    Args:
        options: of the command line.
        log: the file; its content is kept.
    """

    def __init__(self, options: dict[str, str], log: Path) -> None:
        self.log = log
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.word_count", *arguments],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal stops the demo, which then stops this process itself.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise if the process has ended unexpectedly."""
        status = self._process.poll()
        if status is not None:
            raise RuntimeError(
                f"the word count ended with status {status}; the end of {self.log}:\n{self._tail()}"
            )

    def hold(self) -> None:
        """Suspend the process until it is killed or resumed."""
        self._process.send_signal(signal.SIGSTOP)

    def let_go(self) -> None:
        """Resume a suspended process."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process immediately, like a power cut."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask the process to end with SIGTERM; raise if it does not end cleanly."""
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(_STOP_TIMEOUT_S)
        if status != 0:
            raise RuntimeError(
                f"the word count did not stop cleanly (status {status}); the end of {self.log}:\n"
                f"{self._tail()}"
            )

    def discard(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self.kill()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
