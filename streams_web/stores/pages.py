"""Queries of stores over HTTP: where one is asked for, and what it is refused with.

A question runs in a thread of the server's pool, never in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.streams.errors import StreamsError
from headrace.streams.feeds.errors import NoChangelogError, PositionGoneError
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotReadableError,
    QueryError,
    StoreInMemoryError,
    WrongQueryError,
)
from headrace.streams.queries.queries import Queries
from headrace.streams_web.stores.asked import BODY_MAX_BYTES, Asked
from headrace.streams_web.stores.changes import ChangePages
from headrace.streams_web.stores.local import Answer, LocalStores
from headrace.topology.errors import TopologyError

_CODES: tuple[tuple[type[StreamsError], int], ...] = (
    (NoSuchStoreError, 404),
    (WrongQueryError, 400),
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
        self._changes = ChangePages(queries, _refused)

    def routes(self) -> list[Route]:
        """Where what is asked for."""
        one = "/api/stores/{name}"
        local = self._local
        return [
            Route("/api/stores", self._page(local.stores)),
            Route(one, self._page(local.store)),
            Route(f"{one}/get", self._many, methods=["POST"]),
            Route(f"{one}/get", self._page(local.get)),
            Route(f"{one}/range", self._page(local.between)),
            Route(f"{one}/prefix", self._page(local.beginning)),
            Route(f"{one}/count", self._page(local.count)),
            Route(f"{one}/changes", self._changes.changes),
            Route(f"{one}/{{key:path}}/changes", self._changes.changes),
            Route(f"{one}/{{key:path}}", self._page(local.get)),
        ]

    def close(self) -> None:
        """End what lasts."""
        self._changes.close()

    def _page(self, ask: _Ask) -> Callable[[Request], Response]:
        def page(request: Request) -> Response:
            return self._answered(ask, Asked(request))

        return page

    async def _many(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX_BYTES:
                return _said({"error": f"a request is {BODY_MAX_BYTES >> 20} MiB at most"}, 413)
        asked = Asked(request, bytes(body))
        return await run_in_threadpool(lambda: self._answered(self._local.get_many, asked))

    def _answered(self, ask: _Ask, asked: Asked) -> Response:
        try:
            found, code = ask(cast(Queries, self._queries()), asked)
        except (StreamsError, TopologyError) as error:
            return _refused(error)
        return _said(found, code)


def _refused(error: Exception) -> Response:
    said: dict[str, Any] = {"error": str(error)}
    if isinstance(error, NotReadableError) and error.remaining is not None:
        said["restore_remaining"] = error.remaining
    return _said(said, next((code for kind, code in _CODES if isinstance(error, kind)), 503))


def _said(found: dict[str, Any], code: int) -> Response:
    return Response(msgspec.json.encode(found), code, media_type="application/json")
