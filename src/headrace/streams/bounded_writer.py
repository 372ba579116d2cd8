"""Text output that never blocks its writer: it is queued, and dropped if the queue is full.

A pipe whose reader hangs, and a terminal after Ctrl-S, block the writing thread. Here a separate
thread blocks instead, so that neither a commit nor a signal handler does.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

MAX_BYTES = 1 << 20
_WAIT_S = 0.5


class BoundedWriter:
    """Text stream over a file descriptor whose writes never block.

    It writes to the descriptor directly: Python's own stream would hold a lock while it blocks, and
    interpreter shutdown needs that lock.

    Args:
        file: the file descriptor.
        on_dropped: called with the number of dropped texts after the next successful write.
        is_terminal: the result of `isatty`.
    """

    encoding = "utf-8"

    def __init__(
        self,
        file: int,
        *,
        on_dropped: Callable[[int], None],
        is_terminal: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._file = file
        self._on_dropped = on_dropped
        self._is_terminal = is_terminal
        self._max_bytes = max_bytes
        self._texts: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._is_closed = False
        threading.Thread(target=self._run, name="headrace-writer", daemon=True).start()

    def write(self, text: str, /) -> int:
        data = text.encode(errors="replace")
        with self._changed:
            if self._is_closed or self._waiting_bytes + len(data) > self._max_bytes:
                self._dropped += 1
            else:
                self._texts.append(data)
                self._waiting_bytes += len(data)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self._is_terminal

    def close(self, within_s: float = 1.0) -> None:
        """Wait until the queue is written, at most `within_s` seconds; drop every later text."""
        until_s = time.monotonic() + within_s
        with self._changed:
            while self._waiting_bytes and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._texts:
                    if self._is_closed:
                        return
                    self._changed.wait()
                data = self._texts.popleft()
            is_read = self._write(data)
            with self._changed:
                self._waiting_bytes -= len(data)
                self._changed.notify_all()
                dropped, self._dropped = (self._dropped, 0) if is_read else (0, self._dropped)
            if dropped:
                self._on_dropped(dropped)

    def _write(self, data: bytes) -> bool:
        """Write a text, blocking as long as needed; return False if the descriptor is broken."""
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:  # another process has made the terminal non-blocking
                select.select([], [self._file], [], _WAIT_S)
            except OSError:
                return False
        return True
