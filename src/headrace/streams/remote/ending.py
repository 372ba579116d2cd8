"""What waits for somebody, at sockets and in pauses, and is ended from any thread."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from weakref import WeakSet

from headrace.streams.queries.errors import ClosedConnectionError


class Ending:
    """See the module. Any thread may use it.

    >>> ending = Ending()
    >>> part = ending.part()
    >>> ending.end()
    >>> part.is_over
    True
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._parts: WeakSet[Ending] = WeakSet()

    @property
    def is_over(self) -> bool:
        """Whether it was ended."""
        return self._over.is_set()

    def part(self) -> Ending:
        """What ends with this, and before it where it is ended itself."""
        made = Ending()
        with self._lock:
            self._parts.add(made)
            is_over = self.is_over
        if is_over:
            made.end()
        return made

    def note(self, sock: socket.socket) -> None:
        """See that whoever waits at a socket does not wait beyond the end.

        Raises:
            ClosedConnectionError: it has come already.
        """
        with self._lock:
            self.require()
            self._sockets.add(sock)

    def require(self) -> None:
        """Go no further where it is over.

        Raises:
            ClosedConnectionError: it is.
        """
        if self.is_over:
            raise ClosedConnectionError("the connection was closed; make another one to ask again")

    def pause(self, seconds: float) -> None:
        """Sleep, until the end at most."""
        self._over.wait(seconds)

    def end(self) -> None:
        """End it, under whoever waits."""
        with self._lock:
            self._over.set()
            sockets, parts = [*self._sockets], [*self._parts]
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for part in parts:
            part.end()
