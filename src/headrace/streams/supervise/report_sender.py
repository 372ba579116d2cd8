"""How reports get from a worker to its supervisor: over a socket, and never waited for.

A report is a courtesy. It is written without waiting. What the socket has no room for stays here
and goes on with the next one; as long as something stays, later reports are dropped. So a
supervisor that is slow, stopped or gone never delays a worker, a report of any size arrives whole,
and no more than one of them is ever kept. Each says how things are, not what changed, so a dropped
one is made good by the next.

A stream of lines and not of packets: those have a largest size, and not every system has them.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.streams.facts.snapshots import WorkerSnapshot
from headrace.streams.supervise.worker_reports import Report, Status, Told, encode

EVERY_S = 0.5
_ROOM_BYTES = 256 << 10


def report_channel() -> tuple[int, int]:
    """Make the supervisor's end and the worker's, as numbers of files."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return ours.detach(), theirs.detach()


class ReportSender:
    """The worker's end of the socket.

    Args:
        file: its number; nothing else may write to it.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._lock = threading.Lock()
        os.set_blocking(file, False)

    def send(self, report: Report) -> bool:
        """Write a report if there is room; returns whether anybody may still read."""
        with self._lock:
            if not self._write():
                return False
            if self._rest:
                return True  # nobody reads: this one is dropped
            self._rest = encode(report)
            return self._write()

    def send_surely(self, report: Report, *, within_s: float = 1.0) -> bool:
        """Write a report, waiting for room; returns whether it is written."""
        end_s = time.monotonic() + within_s
        with self._lock:
            self._rest += encode(report)
            while self._write() and self._rest:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not select.select([], [self._file], [], left_s)[1]:
                    return False
            return not self._rest

    def _write(self) -> bool:
        """Write what is left, as far as there is room; returns whether anybody may still read."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._file, self._rest) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


class Reporter:
    """Sends how the worker is doing now and then, from a thread of its own.

    Args:
        facts: the worker's last snapshot; None before the first.
    """

    def __init__(
        self,
        sender: ReportSender,
        status: Callable[[], Status],
        facts: Callable[[], WorkerSnapshot | None] = lambda: None,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._sender = sender
        self._status = status
        self._facts = facts
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-reports", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join(self._every_s * 2)
        self._report()

    def _run(self) -> None:
        while not self._ended.is_set() and self._report():
            self._ended.wait(self._every_s)

    def _report(self) -> bool:
        facts = self._facts()
        told = facts is None or self._sender.send(Told(facts))
        # Behind it: a supervisor that has read how the worker is has its numbers, too.
        return told and self._sender.send(self._status())
