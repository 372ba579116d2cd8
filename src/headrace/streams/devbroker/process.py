"""Processes that outlive their parent, and signals that reach no other process.

A process id alone is not sufficient, because the process may have ended and its id may have been
reused. A process is identified by its recorded start time *and* the random token on its command
line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a started process: its id, its start time in the system's format, its token."""

    pid: int
    started: str
    token: str


_AFTER_A_LINE = 'read -r line && exec "$@" </dev/null'
"""Shell script that runs its command after a line on standard input, and else exits."""


def launch(
    command: Sequence[str],
    *,
    token: str,
    cwd: Path,
    output: Path,
    recorded: Callable[[ProcessIdentity], None],
) -> ProcessIdentity:
    """Start `command`, which must contain `token`, in a new session without a pipe to it.

    `recorded` stores the identity before the command starts, so that no unknown process runs, even
    if this process is killed in between.
    """
    assert any(token in word for word in command), "the command line must carry the token"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            ["sh", "-c", _AFTER_A_LINE, "sh", *command],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The recorded identity, not the handle, identifies the process: without this, the handle would
    # warn about a running process when it is garbage collected. `_reap` reads its exit status.
    process.returncode = 0
    identity = ProcessIdentity(pid=process.pid, started=_started(process.pid) or "", token=token)
    assert process.stdin is not None
    with process.stdin as gate:
        recorded(identity)
        gate.write(b"go\n")
    return identity


def is_alive(identity: ProcessIdentity) -> bool:
    """Return whether exactly this process runs; a paused process runs, a zombie does not."""
    if _started(identity.pid) != identity.started:
        return False
    _reap(identity.pid)
    if _state(identity.pid) in (None, "Z", "X"):
        return False
    return identity.token in _command_line(identity.pid)


def is_paused(identity: ProcessIdentity) -> bool:
    return is_alive(identity) and _state(identity.pid) == "T"


def send(identity: ProcessIdentity, signum: signal.Signals) -> bool:
    """Send a signal to exactly this process; return False without a signal if it does not run."""
    try:
        handle = os.pidfd_open(identity.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except OSError:
        handle = None
    try:
        # The handle is opened before the check, so that the id cannot be reused in between.
        if not is_alive(identity):
            return False
        if handle is None:
            os.kill(identity.pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def wait_until_ended(identity: ProcessIdentity, *, timeout: timedelta) -> bool:
    return wait_until(lambda: not is_alive(identity), timeout=timeout)


def wait_until(condition: Callable[[], bool], *, timeout: timedelta) -> bool:
    deadline = time.monotonic() + timeout.total_seconds()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _reap(pid: int) -> None:
    """Read the exit status of a child, which would otherwise remain as a zombie."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _state(pid: int) -> str | None:
    if _PROC.joinpath("self", "stat").exists():
        fields = _proc_stat(pid)
        return fields[0] if fields else None
    return _ps(pid, "state")[:1] or None


def _started(pid: int) -> str | None:
    if _PROC.joinpath("self", "stat").exists():
        fields = _proc_stat(pid)
        return fields[19] if fields else None
    return _ps(pid, "lstart") or None


def _command_line(pid: int) -> str:
    if _PROC.joinpath("self", "cmdline").exists():
        try:
            raw = _PROC.joinpath(str(pid), "cmdline").read_bytes()
        except OSError:
            return ""
        return raw.replace(b"\0", b" ").decode(errors="replace")
    return _ps(pid, "command")


def _proc_stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; the name may contain anything."""
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _ps(pid: int, column: str) -> str:
    command = ["ps", "-ww", "-o", f"{column}=", "-p", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip()
