"""HTTP server in a separate thread.

address ─► socket (opened first, so that its errors are raised before anything starts)
             └─► thread: uvicorn, with connections limited by `ConnectionLimits`
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, cast

import uvicorn
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.streams.kafka.protocols import Log
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.queries.errors import StoppingError
from headrace.streams.web import SetLevel
from headrace.streams_web.address import Address, check_guarded, listen, read_token
from headrace.streams_web.pages import Pages
from headrace.streams_web.stores.routing import LASTS

# When the server stops, pending requests get a response before their connections are closed.
#
#     immediately          waits for positions and change feeds end with an error or an event
#     after GRACE_S        requests without a response get status 503
#     after 2 * GRACE_S    connections that still have unread data are closed
#
# uvicorn would cancel the remaining requests, and log an error for each.


GRACE_S = 0.4
"""Time for running requests to finish. Twice this is less than uvicorn's own timeout."""


class ShutdownMiddleware:
    """ASGI middleware that answers waiting requests when the server stops."""

    def __init__(self, pages: Any) -> None:
        self._pages = pages
        self._unanswered: set[asyncio.Task[Any]] = set()
        self._is_over = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._is_over:
            await _refused()(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self._unanswered.add(task)

        async def answer(message: Any) -> None:
            self._unanswered.discard(task)
            await send(message)

        try:
            await self._pages(scope, receive, answer)
        except asyncio.CancelledError:
            if task not in self._unanswered or not self._is_over:
                raise
            task.uncancel()
            await _refused()(scope, receive, send)
        finally:
            self._unanswered.discard(task)

    @contextmanager
    def within(self, cut_off: Callable[[], None]) -> Iterator[None]:
        """Ensure that all requests end within the block, in the event loop of the server."""
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(GRACE_S, self._answer_all),
            loop.call_later(2 * GRACE_S, cut_off),
        ]
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _answer_all(self) -> None:
        self._is_over = True
        for task in self._unanswered:
            task.cancel()


def _refused() -> JSONResponse:
    return JSONResponse({"error": str(StoppingError())}, 503, {"Connection": "close"})


# Connections are limited in number, in the time until a request arrives, and in total duration.
#
# Otherwise a thousand idle clients would block the clients that request metrics. If the limit is
# reached, the oldest connection without a request is closed, or else the oldest keep-alive
# connection.


CONNECTIONS_MAX = 64
REQUEST_S = 5.0
"""Time limit for a client to send its request."""
LIFE_S = 60.0
"""Maximum duration of a connection, unless its response is an event stream."""
UNREAD_S = 30.0
"""Time limit for a client to read sent data."""

MakeProtocol = Callable[..., Any]


class ConnectionLimits:
    """Limits of the number and duration of connections."""

    def __init__(self, make: MakeProtocol) -> None:
        self._make = make
        self._open: dict[_Bounded, None] = {}
        """Connections in the order of their start."""

    def __call__(self, **options: Any) -> _Bounded:
        return _Bounded(self._make(**options), self)

    def opened(self, one: _Bounded) -> None:
        self._open[one] = None
        if len(self._open) > CONNECTIONS_MAX:
            # Connections without a request are closed first, then keep-alive connections, and event
            # streams last.
            others = (other for other in self._open if other is not one)
            min(others, key=_Bounded.rank).end()

    def closed(self, one: _Bounded) -> None:
        self._open.pop(one, None)

    def end_all(self) -> None:
        for one in list(self._open):
            one.end()


class _Bounded(asyncio.Protocol):
    """A client's connection with limits."""

    def __init__(self, inner: Any, limits: ConnectionLimits) -> None:
        self._inner = inner
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_served(self) -> bool:
        """Whether a whole request has arrived."""
        return self._inner.cycle is not None

    @property
    def is_streaming(self) -> bool:
        """Whether the response is an event stream, which lasts as long as the client reads."""
        return self.is_served and bool(self._inner.scope.get(LASTS))

    @property
    def is_idle(self) -> bool:
        """Whether all received requests have a complete response."""
        return self.is_served and bool(self._inner.cycle.response_complete)

    def rank(self) -> tuple[bool, bool, bool]:
        """Return the sort key for closing: the connection with the lowest is closed first."""
        return self.is_served, self.is_streaming, not self.is_idle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(REQUEST_S, self._end_without_request),
            loop.call_later(LIFE_S, self._end_unless_streaming),
        ]
        self._limits.opened(self)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._unread = asyncio.get_running_loop().call_later(UNREAD_S, self.end)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_read()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_read()
        for timer in self._timers:
            timer.cancel()
        self._limits.closed(self)
        self._inner.connection_lost(exc)

    def end(self) -> None:
        """Close the connection immediately, without sending pending data."""
        self._limits.closed(self)
        if self._transport is not None:
            self._transport.abort()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _end_unless_streaming(self) -> None:
        if not self.is_streaming:
            self.end()
            return
        loop = asyncio.get_running_loop()
        self._timers[1] = loop.call_later(LIFE_S, self._end_unless_streaming)

    def _end_without_request(self) -> None:
        if not self.is_served:
            self.end()


CLOSE_S = 5.0
TICK_S = 1.0
"""Interval of the server's own work, which only updates the Date header."""
_THREAD = "headrace-web"


class HttpServer:
    """HTTP server of an application, in a separate thread, with limited connections.

    Args:
        health: returns the current health snapshot; called in threads of the server.
        address: ``[HOST:]PORT``.
        token_file: file with the token that clients must send, except for health.
        is_open: accept requests of other machines without a token.
        queries: returns the stores for interactive queries; None if these are disabled.

    Raises:
        ConfigError: the address cannot be served, or requires a token.
    """

    def __init__(
        self,
        health: Callable[[], HealthSnapshot],
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
        self._pages = Pages(
            health,
            monotonic_s,
            token,
            set_level=set_level,
            # Open read access does not imply permission to change.
            may_change=token is not None or is_local,
            is_local=is_local,
            queries=queries,
        )
        self._server = _server(self._pages)
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        self._thread.start()
        log.info("web_started", url=f"http://{self.address}", guarded=token is not None)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def close(self) -> None:
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
        uvicorns.addFilter(_is_warning)
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:  # no error of the server may stop the workers
            self._log.error("web_failed", reason=f"{type(error).__name__}: {error}")
        finally:
            uvicorns.removeFilter(_is_warning)


class _Server(uvicorn.Server):
    """Server that wakes up each second and when it stops; uvicorn wakes up ten times a second."""

    def __init__(
        self, config: uvicorn.Config, ending: ShutdownMiddleware, limits: ConnectionLimits
    ) -> None:
        super().__init__(config)
        self._ending, self._limits = ending, limits
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Stop the server, from any thread."""
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
        with self._ending.within(self._limits.end_all):
            await super().shutdown(sockets)


def _is_warning(record: logging.LogRecord) -> bool:
    """Drop uvicorn's log records about its start from this thread, but keep warnings."""
    return record.levelno >= logging.WARNING or record.threadName != _THREAD


def _server(pages: Pages) -> _Server:
    limits, ending = ConnectionLimits(H11Protocol), ShutdownMiddleware(pages.application())
    config = uvicorn.Config(
        ending,
        http=cast(Any, limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config, ending, limits)
