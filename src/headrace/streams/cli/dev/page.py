"""The page that `headrace dev` has its application serve, on this machine alone."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

from headrace.streams.facts.web import NEEDED

PORT = 8080
_HOST = "127.0.0.1"
_OPEN_WITHIN_S = 60.0
_LOOK_S = 0.2


class Page:
    """See the module.

    Args:
        port: where it is; None takes 8080 or, where that is taken, a free one. It stays the same
            over the application's starts.
    """

    def __init__(self, port: int | None) -> None:
        self._port = port if port else _free_port(0 if port == 0 else PORT)

    @property
    def url(self) -> str:
        """What a browser is given."""
        return f"http://{_HOST}:{self._port}/"

    @property
    def options(self) -> tuple[str, ...]:
        """Those of `headrace run`."""
        return ("--http", f"{_HOST}:{self._port}", "--queries")

    def open_soon(self, show: Callable[[str], object] = webbrowser.open) -> None:
        """Show it in a browser, once it is there."""
        threading.Thread(target=self._open, args=(show,), daemon=True).start()

    def _open(self, show: Callable[[str], object]) -> None:
        give_up_s = time.monotonic() + _OPEN_WITHIN_S
        while time.monotonic() < give_up_s:
            asked = f"{self.url}health/live"
            with suppress(OSError), urllib.request.urlopen(asked, timeout=5):  # noqa: S310 - http
                show(self.url)
                return
            time.sleep(_LOOK_S)


def missing() -> str | None:
    """What is not installed that a page needs; None where all is."""
    return next((name for name in NEEDED if find_spec(name) is None), None)


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As what serves it does: a port of a connection that has just ended is no taken one.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((_HOST, port))
                return int(probe.getsockname()[1])
    raise OSError(f"no port of {_HOST} is free")
