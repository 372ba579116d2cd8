"""The supervisor's handle on a worker's process, and what the two say to each other.

    supervisor ──── a line of JSON (`Launch`), later ``stop`` ────► worker
               ◄─── reports (`streams.worker_reports`) ────────────

Two pipes, and nothing else. Where the first one ends without ``stop`` the supervisor is dead, and
the worker closes by itself. So a clean end needs no signal, no polling of parents, and nothing of
the operating system but pipes.

The process has a process group of its own: a Ctrl-C in the terminal reaches the supervisor alone.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from streams.logs import LogFormat
from streams.worker_reports import Report, decode

__all__ = ["STOP", "Launch", "LiveProcess", "Processes"]

STOP = b"stop\n"
_READ_BYTES = 65_536
_TURN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every worker is started with.

    Args:
        target: the application, as `streams.app_loader.load_app` takes it.
        settings: those that differ from the application's own.
        log_format: of its log.
        log_level: of its log.
        colors: whether its log has colors.
    """

    target: str
    settings: Mapping[str, str] = field(default_factory=dict)
    log_format: LogFormat = "json"
    log_level: str = "info"
    colors: bool = False


class LiveProcess:
    """A worker's process (see `streams.supervisor.WorkerProcess`).

    Args:
        launch: what to run.
        index: the worker's number.
        output: takes the lines that the worker writes; None leaves them to the standard streams.
    """

    def __init__(
        self, launch: Launch, index: int, *, output: Callable[[str], None] | None = None
    ) -> None:
        control_read, self._control = os.pipe()
        self._reports, report_write = os.pipe()
        out_read, out_write = os.pipe() if output is not None else (None, None)
        theirs = [control_read, report_write] + ([] if out_write is None else [out_write])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streams.worker_process", launch.target]
                + [str(n) for n in (index, control_read, report_write)],
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=out_write,
                pass_fds=(control_read, report_write),
                process_group=0,
            )
        except OSError:
            for file in (self._control, self._reports, *([] if out_read is None else [out_read])):
                os.close(file)
            raise
        finally:
            for file in theirs:
                os.close(file)
        self._readers = {self._reports: _Lines(self._reports)}
        self._received: list[Report] = []
        if out_read is not None:
            self._readers[out_read] = _Lines(out_read)
        self._output = output
        self._tell(json.dumps(asdict(launch)).encode() + b"\n")

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def files(self) -> list[int]:
        """What there may be something to read from."""
        return [file for file, lines in self._readers.items() if not lines.ended]

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def reports(self) -> Iterator[Report]:
        """What it reported since the last call; passes on what it wrote."""
        for file, lines in self._readers.items():
            for line in lines.read():
                if file == self._reports:
                    yield decode(line)
                elif self._output is not None:
                    self._output(line.decode(errors="replace"))

    def stop(self) -> None:
        """Ask it to close cleanly."""
        self._tell(STOP)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> None:
        """Let go of the pipes."""
        for file in (self._control, *self._readers):
            os.close(file)

    def _tell(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # its end is seen by `poll`
            os.write(self._control, line)


class Processes:
    """Starts workers, and waits for any of them to say something.

    Args:
        launch: what to run.
        output: takes the lines that workers write; None leaves them to the standard streams.
    """

    def __init__(self, launch: Launch, *, output: Callable[[str], None] | None = None) -> None:
        self._launch = launch
        self._output = output
        self._started: list[LiveProcess] = []

    def start(self, index: int) -> LiveProcess:
        """Start the worker of an index."""
        process = LiveProcess(self._launch, index, output=self._output)
        self._started.append(process)
        return process

    def wait(self) -> None:
        """Wait for something to read, the end of a process, or a moment."""
        self._started = [process for process in self._started if process.poll() is None]
        files = [file for process in self._started for file in process.files]
        select.select(files, [], [], _TURN_S)


class _Lines:
    """Whole lines of a pipe, as they come."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self.ended = False
        os.set_blocking(file, False)

    def read(self) -> list[bytes]:
        while not self.ended:
            try:
                chunk = os.read(self._file, _READ_BYTES)
            except BlockingIOError:
                break
            self.ended = not chunk
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        if self.ended and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return lines
