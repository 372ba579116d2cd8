"""Handle of the supervisor on a worker's process, and the protocol between the two.

    supervisor ── a line of JSON (`Launch`), later ``level …``, then ``stop`` or ``leave`` ─► worker
               ◄─── reports (see `worker_reports`) ─────────────────────────────────────────
               ◄──► queries for rows in its memory (see `queries.query_channel`) ───────────►

The channels are a pipe and two sockets. If the pipe closes without ``stop`` or ``leave``, the
supervisor is dead, and the worker closes on its own. A clean end therefore requires neither a
signal, nor polling of the parent process, nor other features of the operating system.

Another pipe captures the worker's standard error until it can log. If a worker dies before, for
example because a module cannot be imported, the supervisor logs this output with the worker's end.

The process has its own process group, so that Ctrl-C in the terminal reaches only the supervisor.
The current directory is not on its import path until it loads the application.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.streams.config.secrets import Secret
from headrace.streams.config.settings import origins_of
from headrace.streams.logs import LogFormat
from headrace.streams.queries.query_channel import QueryChannel, question_channel
from headrace.streams.queries.query_queue import Ask
from headrace.streams.supervisor.worker_reports import Report, decode, report_channel

STOP = b"stop\n"
LEAVE = b"leave\n"
"""Stop and leave the group, regardless of the setting on.stop: the worker does not return."""
LEVEL = b"level "
"""Change the log level; the level follows, to the end of the line."""
STDERR = 2
_READ_BYTES = 65_536
_TURN_S = 0.1
_LAST_WORDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start parameters of all workers.

    Args:
        origins: origin of each setting, if `settings` does not contain it.
        again: command-line options that reproduce these settings.
        endpoint: endpoint of this host's stores, unless the settings contain it.
    """

    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    again: Sequence[str] = ()
    log_format: LogFormat = "json"
    log_level: str = "info"
    colors: bool = False
    terminal: bool = False
    endpoint: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "origins", {**origins_of(self.settings), **self.origins})


class LiveProcess:
    """Worker process (see `headrace.streams.supervisor.supervisor.WorkerProcess`).

    Args:
        output: called with each output line; None inherits the standard streams.
    """

    def __init__(
        self, launch: Launch, index: int, *, output: Callable[[str], None] | None = None
    ) -> None:
        control_read, self._control = os.pipe()
        self._reports, report_write = report_channel()
        out_read, out_write = os.pipe() if output is not None else (None, None)
        first_read, first_write = os.pipe()
        questions, asked = question_channel()
        errors = _copy(STDERR if out_write is None else out_write)
        passed = (control_read, report_write, errors, asked.detach())
        theirs = [*passed, first_write] + ([] if out_write is None else [out_write])
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "headrace.streams.supervisor.worker_entry",
                    launch.target,
                ]
                + [str(n) for n in (index, *passed)],
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=first_write,
                pass_fds=passed,
                process_group=0,
            )
        except OSError:
            for file in (self._control, self._reports, first_read,
                         *([] if out_read is None else [out_read])):  # fmt: skip
                os.close(file)
            questions.close()
            raise
        finally:
            for file in theirs:
                os.close(file)
        self.index = index
        self.questions = QueryChannel(questions)
        """Channel for queries of rows in its memory."""
        self._first = first_read
        self._readers = {file: LineReader(file) for file in (self._reports, first_read)}
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        if out_read is not None:
            self._readers[out_read] = LineReader(out_read)
        self._output = output
        self._tell(json.dumps(asdict(launch), default=Secret.reveal).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def files(self) -> list[int]:
        return [file for file, lines in self._readers.items() if not lines.ended]

    def poll(self) -> int | None:
        return self._process.poll()

    def reports(self) -> Iterator[Report]:
        """Yield its reports since the last call, and pass on its output."""
        for file, lines in self._readers.items():
            for line in lines.read():
                if file == self._reports:
                    yield decode(line)
                elif file == self._first:
                    self._last_words.append(line.decode(errors="replace"))
                elif self._output is not None:
                    self._output(line.decode(errors="replace"))

    def last_words(self) -> list[str]:
        return list(self._last_words)

    def stop(self) -> None:
        self._tell(STOP)

    def leave(self) -> None:
        self._tell(LEAVE)

    def set_log_level(self, level: str) -> None:
        self._tell(LEVEL + level.encode() + b"\n")

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.questions.close()
        for file in (self._control, *self._readers):
            os.close(file)

    def _tell(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # `poll` detects its end
            os.write(self._control, line)


def _copy(file: int) -> int:
    try:
        return os.dup(file)
    except OSError:  # this process has no such file
        return os.open(os.devnull, os.O_WRONLY)


class Processes:
    """Starter of worker processes, which also waits for their output.

    Args:
        output: called with each output line of workers; None inherits the standard streams.
    """

    def __init__(self, launch: Launch, *, output: Callable[[str], None] | None = None) -> None:
        self._launch = launch
        self.endpoint: str | None = None
        """Endpoint of this host's stores, advertised by workers that are started later."""
        self._output = output
        self._started: list[LiveProcess] = []

    def start(self, index: int) -> LiveProcess:
        launch = replace(self._launch, endpoint=self.endpoint)
        process = LiveProcess(launch, index, output=self._output)
        self._started.append(process)
        return process

    def asked(self) -> dict[int, Ask]:
        """Return the query channels of running workers, by worker number. Thread-safe."""
        running = [process for process in tuple(self._started) if process.poll() is None]
        return {process.index: process.questions.ask for process in running}

    def wait(self) -> None:
        """Wait for output, the end of a process, or a short time."""
        self._started = [process for process in self._started if process.poll() is None]
        files = [file for process in self._started for file in process.files]
        select.select(files, [], [], _TURN_S)


class LineReader:
    """Non-blocking reader of whole lines from a pipe."""

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
