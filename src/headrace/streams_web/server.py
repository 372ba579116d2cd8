"""Serves the pages from a thread of its own.

address ─► socket (opened first: what is wrong with it is said before anything starts)
             └─► thread: uvicorn, with connections that `patience` bounds
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.streams.facts.board import Board
from headrace.streams.facts.web import SetLevel
from headrace.streams.seams.clients import Log
from headrace.streams_web.address import Address, check_guarded, listen, read_token
from headrace.streams_web.changes import Changes
from headrace.streams_web.ending import Ending
from headrace.streams_web.pages import Pages
from headrace.streams_web.patience import Patience

CLOSE_S = 5.0
TICK_S = 1.0
"""How often the date of answers goes on, which is all that a server does that nobody asks."""
_THREAD = "headrace-web"


class WebServer:
    """See the module.

    Args:
        board: gives how everything is now; called in threads of the server.
        address: ``[HOST:]PORT``.
        token_file: holds what whoever asks must have, but for health.
        is_open: whether everybody may ask who can reach it.
        set_level: changes what is logged; None where that cannot be asked for.
        queries: gives what stores are asked with; None where they may not be asked for.
        monotonic_s: seconds of the clock of the board.

    Raises:
        ConfigError: the address cannot be served on, or is to be guarded.
    """

    def __init__(
        self,
        board: Callable[[], Board],
        address: str,
        *,
        log: Log,
        token_file: Path | None = None,
        is_open: bool = False,
        set_level: SetLevel | None = None,
        queries: Callable[[], object] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        wanted = Address.parse(address)
        token = None if token_file is None else read_token(token_file)
        check_guarded(wanted, token=token, is_open=is_open)
        self._log = log
        self._socket = listen(wanted)
        self.address = Address(wanted.host, self._socket.getsockname()[1])
        is_local = wanted.is_loopback and token is None and not is_open
        # Whoever may read all may not change something for that.
        changes = Changes(set_level, is_closed=token is None and not is_local)
        self._pages = Pages(board, monotonic_s, token, changes, is_local=is_local, queries=queries)
        self._server = _server(self._pages)
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        self._thread.start()
        log.info("web_started", url=f"http://{self.address}", guarded=token is not None)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.address}"

    def close(self) -> None:
        """Stop to serve."""
        self._pages.close()
        self._server.end()
        self._thread.join(CLOSE_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        uvicorns = logging.getLogger("uvicorn.error")
        uvicorns.addFilter(_says)
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:  # whatever it is: those who work are not to suffer for it
            self._log.error("web_failed", reason=f"{type(error).__name__}: {error}")
        finally:
            uvicorns.removeFilter(_says)


class _Server(uvicorn.Server):
    """Wakes up each second and when it is to end; the library's own does ten times a second."""

    def __init__(self, config: uvicorn.Config, ending: Ending, patience: Patience) -> None:
        super().__init__(config)
        self._ending, self._patience = ending, patience
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Have it end now; from any thread."""
        with self._lock:
            self.should_exit = True
            self._wake()

    async def main_loop(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._lock:
            self._wake = wake
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), TICK_S)
        with self._lock:  # the loop is closed soon
            self._wake = lambda: None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with self._ending.within(self._patience.end_all):
            await super().shutdown(sockets)


def _says(record: logging.LogRecord) -> bool:
    """Keep what the library says of its starts out of the program's log, but not of others'."""
    return record.levelno >= logging.WARNING or record.threadName != _THREAD


def _server(pages: Pages) -> _Server:
    patience, ending = Patience(H11Protocol), Ending(pages.application())
    config = uvicorn.Config(
        ending,
        http=cast(Any, patience),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config, ending, patience)


def serve(board: Callable[[], Board], address: str, **options: Any) -> WebServer:
    """Serve a board; see `WebServer`."""
    return WebServer(board, address, **options)


__all__ = ["WebServer", "serve"]
