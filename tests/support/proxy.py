"""A proxy between workers and a server: it cuts, falls silent, and swallows answers.

It understands of PostgreSQL's protocol as much as it needs to tell a COMMIT from other messages.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Loss = Literal["cut", "silence"]
_COMMIT = b"COMMIT\0"


@dataclass(eq=False, slots=True)
class _Line:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    asked_to_commit: bool = False
    silent: threading.Event = field(default_factory=threading.Event)

    def cut(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens on a port, and passes on what comes to a socket of a server.

    Args:
        target: the server's socket.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._loss: Loss | None = None
        self._lost = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> int:
        """Cut all connections; returns how many."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.cut()
        return len(lines)

    def fall_silent(self) -> int:
        """Pass on nothing more of what is connected now, and keep it connected."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.silent.set()
        return len(lines)

    def lose_answer(self, loss: Loss) -> None:
        """Have the next answer to a COMMIT lost."""
        self._lost.clear()
        self._loss = loss

    def wait_lost(self, seconds: float) -> bool:
        """Whether there was one in time; else none is lost any more."""
        found = self._lost.wait(seconds)
        self._loss = None
        return found

    def close(self) -> None:
        """Listen no more, and cut what there is."""
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._target))
            except OSError:
                client.close()
                continue
            line = _Line(client, server)
            with self._lock:
                self._lines.add(line)
            for pump in (self._asks, self._answers):
                threading.Thread(target=pump, args=(line,), daemon=True).start()

    def _asks(self, line: _Line) -> None:
        while data := _received(line.client):
            if _COMMIT in data:
                line.asked_to_commit = True
            if not line.silent.is_set() and not _sent(line.server, data):
                break
        self._end(line)

    def _answers(self, line: _Line) -> None:
        while data := _received(line.server):
            # What a COMMIT is answered by comes behind it: the transaction is decided.
            if line.asked_to_commit and _COMMIT in data:
                line.asked_to_commit = False
                if self._loss is not None:
                    loss, self._loss = self._loss, None
                    line.silent.set()
                    self._lost.set()
                    if loss == "cut":
                        break
            if not line.silent.is_set() and not _sent(line.client, data):
                break
        self._end(line)

    def _end(self, line: _Line) -> None:
        line.cut()
        with self._lock:
            self._lines.discard(line)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


def _sent(end: socket.socket, data: bytes) -> bool:
    try:
        end.sendall(data)
    except OSError:
        return False
    return True
