"""The supervisor's handle on a worker's process, and what the two say to each other.

    supervisor ── a line of JSON (`Launch`), later ``level …``, then ``stop`` or ``leave`` ─► worker
               ◄─── reports (see `report_sender`) ──────────────────────────────────────────
               ◄──► questions about rows in its memory (see `queries.query_channel`)

A pipe and two sockets, and nothing else. Where the pipe ends without either the supervisor is dead,
and the worker closes by itself. So a clean end needs no signal, no polling of parents, and nothing
of the operating system but these.

Another pipe takes its standard error until it can log: what a worker says that dies before, such
as Python's own words when a module cannot be imported, the supervisor logs with its end.

The process has a process group of its own: a Ctrl-C in the terminal reaches the supervisor alone.
It does not import from the current directory until it loads the application.
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
"""As `STOP`, and whatever the setting on.stop says the group is left: nobody comes back."""
LEVEL = b"level "
"""The lowest level of the log's events follows, to the end of the line."""
STDERR = 2
_READ_BYTES = 65_536
_TURN_S = 0.1
_LAST_WORDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every worker is started with.

    Args:
        target: the application, as `headrace.streams.supervisor.app_loader.load_app` takes it.
        settings: those that differ from the application's own.
        origins: where those were given, as far as they do not know it themselves.
        again: the options of a command that is to have the same ones.
        terminal: whether people read its log as it comes.
        endpoint: where its host serves its stores, unless its settings say where others reach them.
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
    """A worker's process (see `headrace.streams.supervisor.supervisor.WorkerProcess`).

    Args:
        output: takes the lines that the worker writes; None leaves them to the standard streams.
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
        """Asks it about rows in its memory."""
        self._first = first_read
        self._readers = {file: LineReader(file) for file in (self._reports, first_read)}
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        if out_read is not None:
            self._readers[out_read] = LineReader(out_read)
        self._output = output
        self._tell(json.dumps(asdict(launch), default=Secret.reveal).encode() + b"\n")

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
                elif file == self._first:
                    self._last_words.append(line.decode(errors="replace"))
                elif self._output is not None:
                    self._output(line.decode(errors="replace"))

    def last_words(self) -> list[str]:
        """The end of what it wrote to its standard error before it could log."""
        return list(self._last_words)

    def stop(self) -> None:
        """Ask it to close cleanly."""
        self._tell(STOP)

    def leave(self) -> None:
        """Ask it to close cleanly and to leave the group for good."""
        self._tell(LEAVE)

    def set_log_level(self, level: str) -> None:
        """Have it log from this level on."""
        self._tell(LEVEL + level.encode() + b"\n")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> None:
        """Let go of the pipes."""
        self.questions.close()
        for file in (self._control, *self._readers):
            os.close(file)

    def _tell(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # its end is seen by `poll`
            os.write(self._control, line)


def _copy(file: int) -> int:
    try:
        return os.dup(file)
    except OSError:  # this process was started without
        return os.open(os.devnull, os.O_WRONLY)


class Processes:
    """Starts workers, and waits for any of them to say something.

    Args:
        output: takes the lines that workers write; None leaves them to the standard streams.
    """

    def __init__(self, launch: Launch, *, output: Callable[[str], None] | None = None) -> None:
        self._launch = launch
        self.endpoint: str | None = None
        """Where this host serves its stores; workers that are started from then on tell others."""
        self._output = output
        self._started: list[LiveProcess] = []

    def start(self, index: int) -> LiveProcess:
        """Start the worker of an index."""
        launch = replace(self._launch, endpoint=self.endpoint)
        process = LiveProcess(launch, index, output=self._output)
        self._started.append(process)
        return process

    def asked(self) -> dict[int, Ask]:
        """The workers that run, by their numbers; any thread may ask them."""
        running = [process for process in tuple(self._started) if process.poll() is None]
        return {process.index: process.questions.ask for process in running}

    def wait(self) -> None:
        """Wait for something to read, the end of a process, or a moment."""
        self._started = [process for process in self._started if process.poll() is None]
        files = [file for process in self._started for file in process.files]
        select.select(files, [], [], _TURN_S)


class LineReader:
    """Whole lines of a pipe, as they come."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self.ended = False
        os.set_blocking(file, False)

    def read(self) -> list[bytes]:
        """The whole lines that came since the last call."""
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
