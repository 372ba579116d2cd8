"""A host that hangs, as one that was stopped: it takes connections and answers nothing."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Self


class HungHost:
    """See the module.

    Args:
        port: where; 0 is any that is free.
        says: what it sends to each who connects, before it is silent.
    """

    def __init__(self, port: int = 0, *, says: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._says = says
        self._taken: list[socket.socket] = []
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many have connected so far."""
        return len(self._taken)

    def _take(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(self._stopped, selectors.EVENT_READ)
            while all(key.fileobj is self._listener for key, _ in ready.select()):
                taken, _ = self._listener.accept()
                taken.sendall(self._says)
                self._taken.append(taken)

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        for one in (self._listener, self._stopped, *self._taken):
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
