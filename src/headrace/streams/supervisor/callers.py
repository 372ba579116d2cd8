"""Client of the control socket: finds a running `headrace run` and sends it requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.streams.errors import StreamsError
from headrace.streams.supervisor.control_server import ANSWER_WITHIN_S, FOLDER, is_live, short_name


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

    def ask(self, request: Mapping[str, object]) -> str:
        """Send a request; return the response message."""
        line = json.dumps(request).encode() + b"\n"
        try:
            with socket.socket(socket.AF_UNIX) as caller, short_name(self.path) as name:
                caller.settimeout(2 * ANSWER_WITHIN_S)
                caller.connect(name)
                caller.sendall(line)
                answer = json.loads(caller.makefile().readline() or "{}")
        except (OSError, ValueError) as error:
            raise ControlError(f"{self} does not answer: {error}; try it again") from error
        if "said" not in answer:
            why = answer.get("refused", "it ended meanwhile")
            raise ControlError(f"{self} does not do it: {why}")
        return f"{self}: {answer['said']}"


def find_running(
    state_dir: Path, *, application: str | None = None, process: int | None = None
) -> Running:
    """Find the single `headrace run` that matches; None matches any."""
    found = []
    for path in sorted(state_dir.glob(f"{application or '*'}/{FOLDER}/*.sock")):
        one = Running(path.parents[1].name, int(path.name.partition("-")[0]), path)
        try:
            if process in (None, one.process) and is_live(path):
                found.append(one)
        except PermissionError as error:
            raise ControlError(
                f"{one} is another user's: call this as the user that runs it"
            ) from error
    if not found:
        what = "application" if application is None else application
        of = "" if process is None else f" as process {process}"
        raise ControlError(
            f"no {what} is run{of} by `headrace run` on this host with its state in {state_dir}; "
            "its setting state.dir may be another one: give it as --state-dir"
        )
    if len(found) > 1:
        raise ControlError(
            f"several run here: {', '.join(map(str, found))}; say which one with --application "
            "or --process"
        )
    return found[0]
