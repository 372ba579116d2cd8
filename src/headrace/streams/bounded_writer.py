"""Output that never blocks its writer: it is queued, and dropped if the queue is full.

A pipe or socket whose reader hangs, and a terminal after Ctrl-S, block the writing thread. Here a
separate thread blocks instead, so that neither a commit nor a signal handler does.
"""

from __future__ import annotations

import os
import select
import threading
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
        on_dropped: called with the number of dropped writes after the next successful write.
        is_terminal: the result of `isatty`.
        max_bytes: maximum size of the queue; a single write may be larger.
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
        self._queue: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> int:
        self.put(text.encode(errors="replace"))
        return len(text)

    def put(self, data: bytes, *, always: bool = False) -> bool:
        """Queue bytes, with `always` regardless of the limit; return False if they are dropped."""
        with self._changed:
            is_full = self._waiting_bytes and self._waiting_bytes + len(data) > self._max_bytes
            if self._is_closed or (is_full and not always):
                self._dropped += 1
                return False
            self._queue.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()
            return True

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self._is_terminal

    def drain(self, within_s: float) -> bool:
        """Wait at most `within_s` seconds; return whether the whole queue was written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, within_s)
            return not (self._waiting_bytes or self._is_broken)

    def close(self, within_s: float = 1.0, *, joins: bool = False) -> None:
        """Drain the queue and drop all later writes; `joins` to wait for the end of the thread."""
        self.drain(within_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if joins:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._is_closed:
                        return
                    self._changed.wait()
                data = self._queue.popleft()
            is_read = self._write(data)
            with self._changed:
                self._is_broken = not is_read
                self._waiting_bytes -= len(data)
                self._changed.notify_all()
                dropped, self._dropped = (self._dropped, 0) if is_read else (0, self._dropped)
            if dropped:
                self._on_dropped(dropped)

    def _write(self, data: bytes) -> bool:
        """Write bytes, blocking as long as needed; return False if the descriptor is broken."""
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:  # another process has made the terminal non-blocking
                select.select([], [self._file], [], _WAIT_S)
            except OSError:
                return False
        return True
