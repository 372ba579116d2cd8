"""Control socket of the supervisor and its client, in the state directory, for its user only.

    <state.dir>/<application.id>/control/<process>-<random>.sock

Access to the directory grants control, so its mode is 0700. A client sends a line of JSON, such as
``{"scale": 3}``, and receives a line: ``{"message": "…"}``, or ``{"error": "…"}`` with the reason.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.streams import logs
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import Log
from headrace.streams.supervisor.supervisor import CommandRefusedError, Supervisor

FOLDER = "control"
ANSWER_WITHIN_S = 5.0
"""Time limit for the supervisor's response, and for a client's request."""
_LINE_MAX = 4_096
_WAITING_MAX = 8

Command = Callable[[Supervisor], str]


class ControlServer:
    """Server of the control socket: a thread that handles requests sequentially.

    Args:
        submit: queues a command for the supervisor's thread.
    """

    def __init__(self, submit: Callable[[Command], Future[str]], log: Log) -> None:
        self._submit = submit
        self._log = log
        self._socket: socket.socket | None = None
        self._path: Path | None = None

    def open(self, home: Path) -> None:
        """Start to accept requests; an unusable directory is logged and otherwise ignored."""
        folder = home / FOLDER
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._remove_dead(folder)
            self._listen(folder / f"{os.getpid()}-{secrets.token_hex(3)}.sock")
        except OSError as error:
            self._log.warning(
                "control_unavailable",
                reason=f"{folder}: {error.strerror}",
                advice="headrace scale and log-level do not reach this process; the rest works",
            )

    def close(self) -> None:
        if self._socket is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._socket.close()

    def _listen(self, path: Path) -> None:
        made = socket.socket(socket.AF_UNIX)
        try:
            with short_name(path) as name:
                made.bind(name)
            made.listen(_WAITING_MAX)
        except OSError:
            made.close()
            raise
        self._socket, self._path = made, path
        threading.Thread(
            target=self._serve, args=(made,), name="headrace-control", daemon=True
        ).start()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                caller, _ = listening.accept()
            except OSError:  # closed
                return
            with caller, suppress(OSError):
                caller.settimeout(ANSWER_WITHIN_S)
                answer = self._answer(_line(caller))
                caller.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, str]:
        try:
            command = _command_of(line)
            return {"message": self._submit(command).result(ANSWER_WITHIN_S)}
        except (CommandRefusedError, ValueError) as error:
            return {"error": str(error)}
        except TimeoutError:
            return {"error": "the supervisor does not answer and may be stopping"}

    def _remove_dead(self, folder: Path) -> None:
        for path in folder.glob("*.sock"):
            with suppress(OSError):
                if not is_live(path):
                    path.unlink()


def is_live(path: Path) -> bool:
    """Return whether a process listens; raise PermissionError if it is another user's."""
    with socket.socket(socket.AF_UNIX) as caller, short_name(path) as name:
        caller.settimeout(ANSWER_WITHIN_S)
        try:
            caller.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a short name for a socket's path, which may be longer than the system allows."""
    if not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _line(caller: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_MAX:
        more = caller.recv(_LINE_MAX)
        if not more:
            break
        line += more
    return line


def _command_of(line: bytes) -> Command:
    request = json.loads(line)
    match request:
        case {"scale": int(workers)}:
            return lambda supervisor: supervisor.scale(workers)
        case {"log_level": str(level)}:
            logs.level_number(level)
            return lambda supervisor: supervisor.change_log_level(level)
    raise ValueError("the request is unknown to this version of headrace")


class ControlError(StreamsError):
    """Request to a running application that failed; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class Running:
    """Running `headrace run` on this host, with the path of its control socket."""

    application: str
    process: int
    path: Path

    def __str__(self) -> str:
        return f"{self.application} (process {self.process})"

    def send(self, request: Mapping[str, object]) -> str:
        """Send a request; return the response message."""
        line = json.dumps(request).encode() + b"\n"
        try:
            with socket.socket(socket.AF_UNIX) as caller, short_name(self.path) as name:
                caller.settimeout(2 * ANSWER_WITHIN_S)
                caller.connect(name)
                caller.sendall(line)
                answer = json.loads(caller.makefile().readline() or "{}")
        except (OSError, ValueError) as error:
            raise ControlError(f"{self} does not answer: {error}. Try again") from error
        if "message" not in answer:
            why = answer.get("error", "it ended meanwhile")
            raise ControlError(f"{self} refuses the request: {why}")
        return f"{self}: {answer['message']}"


def find_running(
    state_dir: Path, *, application: str | None = None, process: int | None = None
) -> Running:
    """Find the single `headrace run` that matches; None matches any."""
    running = []
    for path in sorted(state_dir.glob(f"{application or '*'}/{FOLDER}/*.sock")):
        one = Running(path.parents[1].name, int(path.name.partition("-")[0]), path)
        try:
            if process in (None, one.process) and is_live(path):
                running.append(one)
        except PermissionError as error:
            raise ControlError(
                f"{one} is run by another user. Run this command as that user"
            ) from error
    if not running:
        what = "application" if application is None else application
        of = "" if process is None else f" as process {process}"
        raise ControlError(
            f"no {what} is run{of} by `headrace run` on this host with state.dir {state_dir}. Set "
            "--state-dir, if its state.dir differs"
        )
    if len(running) > 1:
        raise ControlError(
            f"several applications run here: {', '.join(map(str, running))}. Set --application or "
            "--process"
        )
    return running[0]
