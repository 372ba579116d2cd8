"""Handle of the supervisor on a worker's process.

The two share a socket (see `headrace.streams.supervisor.channel`). A pipe captures the worker's
standard error until it can log: if a worker dies before, for example because a module cannot be
imported, the supervisor logs this output with the worker's end.

The process has its own process group, so that Ctrl-C in the terminal reaches only the supervisor.
The current directory is not on its import path until it loads the application.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from headrace.streams.queries.query_queue import SendQuery
from headrace.streams.supervisor.channel import (
    Answer,
    Channel,
    Launch,
    Report,
    SetLogLevel,
    Stop,
    WorkerQueries,
)

STDERR = 2
_READ_BYTES = 65_536
_TURN_S = 0.1
_LAST_LINES = 20


class LiveProcess:
    """Worker process (see `headrace.streams.supervisor.supervisor.WorkerProcess`).

    Args:
        output: called with each output line; None inherits the standard streams.
    """

    def __init__(
        self, launch: Launch, index: int, *, output: Callable[[str], None] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        first_read, first_write = os.pipe()
        out_read, out_write = os.pipe() if output is not None else (None, None)
        errors = _copy(STDERR if out_write is None else out_write)
        module = "headrace.streams.supervisor.worker_entry"
        numbers = [str(number) for number in (index, theirs.fileno(), errors)]
        self._readers = {first_read: LineReader(first_read)}
        if out_read is not None:
            self._readers[out_read] = LineReader(out_read)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, launch.target, *numbers],
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=first_write,
                pass_fds=(theirs.fileno(), errors),
                process_group=0,
            )
        except OSError:
            ours.close()
            for file in self._readers:
                os.close(file)
            raise
        finally:
            theirs.close()
            for file in (first_write, errors, *([] if out_write is None else [out_write])):
                os.close(file)
        self.index = index
        self._channel = Channel(ours)
        self.queries = WorkerQueries(self._channel)
        """Queries for rows in its memory."""
        self._first = first_read
        self._last_output: deque[str] = deque(maxlen=_LAST_LINES)
        self._output = output
        self._channel.send(launch)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def files(self) -> list[int]:
        files = [file for file, lines in self._readers.items() if not lines.ended]
        return files if self._channel.has_ended else [self._channel.fileno(), *files]

    def poll(self) -> int | None:
        return self._process.poll()

    def reports(self) -> Iterator[Report]:
        """Yield its reports since the last call, and pass on its output and answers."""
        for message in self._channel.receive():
            if isinstance(message, Answer):
                self.queries.on_answer(message)
            elif isinstance(message, Report):
                yield message
        if self._channel.has_ended:
            self.queries.close()
        for file, lines in self._readers.items():
            for line in lines.read():
                text = line.decode(errors="replace")
                if file == self._first:
                    self._last_output.append(text)
                elif self._output is not None:
                    self._output(text)

    def last_output(self) -> list[str]:
        return list(self._last_output)

    def stop(self) -> None:
        self._channel.send(Stop(), always=True)

    def leave(self) -> None:
        self._channel.send(Stop(leave=True), always=True)

    def set_log_level(self, level: str) -> None:
        self._channel.send(SetLogLevel(level), always=True)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.queries.close()
        self._channel.close()
        for file in self._readers:
            os.close(file)


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

    def queries(self) -> dict[int, SendQuery]:
        """Return the queries of running workers, by worker number. Thread-safe."""
        running = [process for process in tuple(self._started) if process.poll() is None]
        return {process.index: process.queries.ask for process in running}

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
