"""Queries of stores over HTTP: where one is asked for, and what it is refused with.

A question runs in a thread, never in a worker. Those that other hosts send on have threads of their
own: two hosts that wait for each other's answers would have none left to give them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.streams.errors import StreamsError
from headrace.streams.feeds.errors import NoChangelogError
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotHereError,
    NotReadableError,
    PositionGoneError,
    QueryError,
    StoreInMemoryError,
    UnreachedHostError,
    WrongQueryError,
)
from headrace.streams.queries.queries import Queries
from headrace.streams_web.stores import cluster, parameters
from headrace.streams_web.stores.asked import BODY_MAX_BYTES, Asked
from headrace.streams_web.stores.changes import ChangePages
from headrace.streams_web.stores.local import Answer, LocalStores
from headrace.streams_web.stores.parameters import require_known
from headrace.streams_web.stores.routing import RoutedStores, SentElsewhereError
from headrace.topology.errors import TopologyError

THREADS = 32
"""So many questions are answered at once; and as many of those that other hosts send on."""

_CODES: tuple[tuple[type[StreamsError], int], ...] = (
    (NoSuchStoreError, 404),
    (WrongQueryError, 400),
    (NotHereError, 421),
    (NotReadableError, 503),
    (StoreInMemoryError, 501),
    (NoChangelogError, 501),
    (PositionGoneError, 410),
    (QueryError, 500),
    (StreamsError, 503),
)
_Ask = Callable[[Queries, Asked], Answer]


class StorePages:
    """See the module.

    Args:
        queries: gives the stores; raises a StreamsError where the application cannot be loaded.
    """

    def __init__(self, queries: Callable[[], object]) -> None:
        self._queries = queries
        self._local = LocalStores()
        self._routed = RoutedStores(self._local)
        self._changes = ChangePages(queries, _refused, self._routed.rows)
        self._limits: tuple[anyio.CapacityLimiter, anyio.CapacityLimiter] | None = None

    def routes(self) -> list[Route]:
        """Where what is asked for."""
        one = "/api/stores/{name}"
        asks = self._routed
        return [
            Route("/api/hot-keys", self._page(cluster.hot_keys, parameters.STORES)),
            Route("/api/group", self._page(cluster.group, parameters.STORES)),
            Route("/api/stores", self._page(self._local.stores, parameters.STORES)),
            Route(one, self._page(asks.store, parameters.STORE)),
            Route(f"{one}/get", self._many, methods=["POST"]),
            Route(f"{one}/get", self._page(asks.of_key, parameters.GET)),
            Route(f"{one}/range", self._page(asks.between, parameters.RANGE)),
            Route(f"{one}/prefix", self._page(asks.beginning, parameters.PREFIX)),
            Route(f"{one}/count", self._page(asks.count, parameters.COUNT)),
            Route(f"{one}/changes", self._changes.changes),
            Route(f"{one}/{{key:path}}/changes", self._changes.changes),
            Route(f"{one}/{{key:path}}", self._page(asks.of_key, parameters.KEY)),
        ]

    def _page(self, ask: _Ask, known: Mapping[str, str]) -> Any:
        async def page(request: Request) -> Response:
            return await self._in_thread(ask, Asked.of(request), known)

        return page

    async def _many(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX_BYTES:
                return _said({"error": f"a request is {BODY_MAX_BYTES >> 20} MiB at most"}, 413)
        asked = Asked.of(request, bytes(body))
        return await self._in_thread(self._routed.of_keys, asked, parameters.MANY)

    async def _in_thread(self, ask: _Ask, asked: Asked, known: Mapping[str, str]) -> Response:
        if self._limits is None:  # they belong to the loop that is running
            self._limits = anyio.CapacityLimiter(THREADS), anyio.CapacityLimiter(THREADS)
        limiter = self._limits[asked.asker is not None]
        return await anyio.to_thread.run_sync(self._answered, ask, asked, known, limiter=limiter)

    def _answered(self, ask: _Ask, asked: Asked, known: Mapping[str, str]) -> Response:
        try:
            require_known((name for name, _ in asked.given), known)
            asked.require_right()
            found, code = ask(cast(Queries, self._queries()), asked)
        except SentElsewhereError as sent:
            return RedirectResponse(sent.url, 307)
        except (StreamsError, TopologyError) as error:
            return _refused(error)
        return _said(found, code)

    def close(self) -> None:
        """End what lasts and what waits, and the connections to other hosts."""
        self._local.close()
        self._changes.close()
        self._routed.close()


def _more(error: Exception) -> dict[str, Any]:
    """What a program can act on."""
    found: dict[str, Any] = {}
    if isinstance(error, NotReadableError) and error.remaining is not None:
        found["restore_remaining"] = error.remaining
    if isinstance(error, NotHereError):
        found["partition"] = error.partition
    if isinstance(error, NotHereError | UnreachedHostError):
        found["host"] = error.host
    return found


def _refused(error: Exception) -> Response:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 503)
    return _said({"error": str(error), **_more(error)}, code)


def _said(found: dict[str, Any], code: int) -> Response:
    return Response(msgspec.json.encode(found), code, media_type="application/json")
