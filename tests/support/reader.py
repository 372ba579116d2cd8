"""A reader of the tutorial who runs its commands against the broker of the tests."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, wait_until
from tests.support.tutorials import Block, save

SHOP = (
    "customers", "dead-letters", "late-receipts", "order-states", "orders", "payments", "receipts",
    "revenue", "revenue-by-city", "revenue-per-hour",
)  # fmt: skip
"""Topics of the whole application; its id is one of them, too."""


class Reader:
    """A reader with a directory of files, whose topics no other test uses.

    Args:
        home: directory of the files.
        bootstrap: address of the broker, in place of `localhost:9092`.
        names: own names of the topics and applications of the pages.
    """

    def __init__(self, home: Path, bootstrap: str, names: Mapping[str, str]) -> None:
        self.home = home
        self._names = names
        self._bootstrap = bootstrap
        self._environment = {
            **os.environ,
            "HEADRACE_BOOTSTRAP_SERVERS": bootstrap,
            "PYTHONPATH": IMPORT_PATH,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "XDG_STATE_HOME": str(home / "state"),
        }

    def save(self, block: Block) -> None:
        """Save a file with the own names."""
        text = block.text.replace("localhost:9092", self._bootstrap)
        for name, own in self._names.items():
            text = text.replace(f'"{name}"', f'"{own}"')
        save(Block(block.kind, block.file, text), self.home)

    def run(self, line: str, *, code: int = 0) -> str:
        """Run a line of a page, with pipes as in a shell; return what it printed."""
        done = subprocess.run(
            self._own(line),
            shell=True,
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, (line, done.stdout + done.stderr)
        for name, own in self._names.items():
            done.stdout = done.stdout.replace(own, name)
        return done.stdout

    @contextmanager
    def running(self, line: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a line of a page in a terminal of its own, and end it as Ctrl-C does."""
        command = " ".join((f"exec {self._own(line)}", *options))
        with (self.home / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                shell=True,
                cwd=self.home,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0, self.log()
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        """Return the output of the running command so far."""
        return (self.home / "log").read_text()

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Wait until the running command has printed a text."""
        wait_until(lambda: self.log().count(text) >= times, what=f"{text}: {times} times")

    def _own(self, line: str) -> str:
        return " ".join(self._word(word) for word in shlex.split(line))

    def _word(self, word: str) -> str:
        modules = {name: f"{sys.executable} -m {name}" for name in ("headrace", "pytest")}
        programs = {"python": sys.executable, **modules}
        if word in (">", "|") or word in programs:
            return programs.get(word, word)
        topic, equals, path = word.partition("=")
        return shlex.quote(self._names.get(topic, topic) + equals + path)
