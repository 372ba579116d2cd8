"""Connections are bounded: in number, in how long a request may take to come, and in all.

Else a thousand clients that connect and say nothing would keep those out who ask for metrics. Where
there is no room, the one goes that has been silent for longest, then one that is kept for later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.streams_web.stores.lasting import LASTS

CONNECTIONS_MAX = 64
REQUEST_S = 5.0
"""How long a client may take to send its request."""
LIFE_S = 60.0
"""How long a connection lasts, whatever is done over it, unless its answer is one that lasts."""
UNREAD_S = 30.0
"""How long a client may leave unread what was sent to it."""

MakeProtocol = Callable[..., Any]


class Patience:
    """Makes the protocols of a server's connections, around those that speak HTTP.

    Args:
        make: makes a protocol of HTTP.
    """

    def __init__(self, make: MakeProtocol) -> None:
        self._make = make
        self._open: dict[_Bounded, None] = {}
        """In the order in which they came."""

    def __call__(self, **options: Any) -> _Bounded:
        """Make the protocol of a connection."""
        return _Bounded(self._make(**options), self)

    def came(self, one: _Bounded) -> None:
        """There is one more; let one go if that is too many."""
        self._open[one] = None
        if len(self._open) > CONNECTIONS_MAX:
            # Those that say nothing go first, then those that are kept for later, and those that
            # listen to what goes on last.
            others = (other for other in self._open if other is not one)
            min(others, key=_Bounded.rank).end()

    def went(self, one: _Bounded) -> None:
        """There is one less."""
        self._open.pop(one, None)

    def end_all(self) -> None:
        """End all that there are."""
        for one in list(self._open):
            one.end()


class _Bounded(asyncio.Protocol):
    """A connection of one client."""

    def __init__(self, inner: Any, patience: Patience) -> None:
        self._inner = inner
        self._patience = patience
        self._transport: asyncio.Transport | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_served(self) -> bool:
        """Whether a whole request has come."""
        return self._inner.cycle is not None

    @property
    def lasts(self) -> bool:
        """Whether what is answered goes on for as long as the client listens."""
        return self.is_served and bool(self._inner.scope.get(LASTS))

    @property
    def is_kept(self) -> bool:
        """Whether all requests that came are answered."""
        return self.is_served and bool(self._inner.cycle.response_complete)

    def rank(self) -> tuple[bool, bool, bool]:
        """What is less goes first, where there is no room."""
        return self.is_served, self.lasts, not self.is_kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(REQUEST_S, self._end_if_silent),
            loop.call_later(LIFE_S, self._end_unless_it_lasts),
        ]
        self._patience.came(self)

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
        self._patience.went(self)
        self._inner.connection_lost(exc)

    def end(self) -> None:
        """End it at once, with what is still to be written."""
        self._patience.went(self)
        if self._transport is not None:
            self._transport.abort()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _end_unless_it_lasts(self) -> None:
        if not self.lasts:
            self.end()
            return
        loop = asyncio.get_running_loop()
        self._timers[1] = loop.call_later(LIFE_S, self._end_unless_it_lasts)

    def _end_if_silent(self) -> None:
        if not self.is_served:
            self.end()
