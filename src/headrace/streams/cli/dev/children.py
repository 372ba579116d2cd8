"""The commands that `headrace dev` runs beside each other, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.streams.cli.dev.leash import STOP_S


class Child:
    """A command; what it writes is passed on line by line.

    It has a process group of its own, so that a Ctrl-C in the terminal does not reach it, and ends
    when this process does.
    """

    def __init__(self, *arguments: str, say: Callable[[str], None]) -> None:
        self._said: list[str] = []
        self._say = say
        leash, self._leash = os.pipe()
        try:
            self._process = subprocess.Popen(
                _on_leash(leash, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_without_settings(os.environ),
                pass_fds=[leash],
                process_group=0,
                text=True,
                errors="replace",
            )
        finally:
            os.close(leash)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            self._say(line.rstrip("\n"))

    def has_said(self) -> bool:
        """Whether it wrote anything."""
        return bool(self._said)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self._process.wait()
        self._reader.join()
        return code

    def stop(self) -> None:
        """End it: cleanly, if it does so in time."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.wait()
        os.close(self._leash)


@contextmanager
def tidied(settings: Path, broker: Path | None) -> Iterator[None]:
    """Have these put away where this process is killed; else who made them does that.

    Args:
        settings: the directory of the file with the settings.
        broker: the directory of the broker that this process starts.
    """
    leash, ours = os.pipe()
    brokers = [] if broker is None else [str(broker)]
    try:
        process = subprocess.Popen(
            _on_leash(leash, "--tidy", str(settings), *brokers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[leash],
            process_group=0,
        )
    finally:
        os.close(leash)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _on_leash(leash: int, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace.streams.cli.dev.leash", str(leash), *arguments]


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What `headrace dev` has read already, and gives them in a file."""
    return {name: text for name, text in environ.items() if not name.startswith("HEADRACE_")}
