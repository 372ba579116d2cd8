"""What is served, and to whom: the metrics, the health, and JSON."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.streams.facts.board import Board
from headrace.streams.facts.hot_keys import without_keys
from headrace.streams.facts.takeovers import without_taken
from headrace.streams.facts.wire import to_json
from headrace.streams.secrets import Secret
from headrace.streams.settings import span_of
from headrace.streams_web import exposition, health, static
from headrace.streams_web.address import names_this_machine
from headrace.streams_web.changes import LOG_LEVEL, Changes
from headrace.streams_web.openapi import described
from headrace.streams_web.views import VIEWS, View, topology_of

ABOUT = """Headrace {version}: {application}

/                              the live page, in a browser
/metrics                       for Prometheus
/health/live /health/ready /health/startup
/api/openapi.json              what there is as JSON
"""
UNGUARDED = frozenset({"/health/live", "/health/ready", "/health/startup"})
"""What probes ask, which cannot always send a token; it says little."""
NOT_HERE = (
    "this is served for this machine alone, and {host!r} is another one: ask for localhost, or "
    "serve it with a token: --http-token-file FILE"
)
SEND_IT = "send the token: Authorization: Bearer TOKEN"
NOT_IT = "the token is wrong: it is not the one of the file that this was served with"
NOT_THERE = "there is no such page: / names what there is, and /api/openapi.json what is JSON"
NO_STORES = "stores are not served here: headrace run --http ... --queries does that"
Headers = list[tuple[bytes, bytes]]
SCRAPE_KEPT_S = 0.25
"""So old may a scrape be that is given to several who ask at once."""


class Pages:
    """See the module.

    Args:
        board: gives how everything is now.
        monotonic_s: seconds of the clock of the board.
        token: what whoever asks must have, but for health.
        changes: what may be changed over HTTP.
        is_local: whether it is for this machine alone. Who asks for another host then is a page of
            somebody else's in a browser here, which had its own name lead to this address.
        queries: gives what stores are asked with; None where they may not be asked for.
    """

    def __init__(
        self,
        board: Callable[[], Board],
        monotonic_s: Callable[[], float],
        token: Secret | None,
        changes: Changes,
        *,
        is_local: bool = False,
        queries: Callable[[], object] | None = None,
    ) -> None:
        self._board = board
        self._monotonic_s = monotonic_s
        self._token = token
        self._is_local = is_local
        self._changes = changes
        self._queries = queries
        self._lock = threading.Lock()
        self._scraped = (float("-inf"), b"")
        self._close_stores: Callable[[], None] = lambda: None

    def application(self) -> Any:
        """The pages as an ASGI application."""
        routes = [
            Route("/", self._about),
            Route("/metrics", self._metrics),
            Route("/health/live", self._live),
            Route("/health/ready", self._ready),
            Route("/health/startup", self._startup),
            Route("/api/openapi.json", self._described),
            Route("/api/topology", self._topology),
            *static.routes(),
            *(Route(f"/api/{view.name}", self._page_of(view)) for view in VIEWS),
            Route(LOG_LEVEL, self._changes.log_level, methods=["POST"]),
            *self._of_stores(),
        ]
        refused = {HTTPException: self._refused}
        return self._guarded(Starlette(routes=routes, exception_handlers=refused))

    def _of_stores(self) -> list[Route]:
        if self._queries is None:
            return []
        from headrace.streams_web.stores.pages import StorePages  # loads RocksDB

        stores = StorePages(self._queries)
        self._close_stores = stores.close
        return stores.routes()

    def close(self) -> None:
        """End answers that go on for as long as a client listens."""
        self._close_stores()

    def _guarded(self, pages: Any) -> Any:
        """Ask for the token first."""

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            page = pages
            if scope["type"] == "http" and not _is_free(scope["path"], scope["headers"]):
                if not self._may(scope["headers"]):
                    said = NOT_IT if _has_token(scope["headers"]) else SEND_IT
                    page = JSONResponse({"error": said}, 401, {"WWW-Authenticate": "Bearer"})
                elif self._is_local and (other := _other_host(scope["headers"])):
                    page = JSONResponse({"error": NOT_HERE.format(host=other)}, 421)
            await page(scope, receive, send)

        return guarded

    def _may(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        wanted = f"Bearer {self._token.reveal()}".encode()
        return any(
            name == b"authorization" and hmac.compare_digest(value, wanted)
            for name, value in headers
        )

    # -- pages; those that take time are functions, which a pool of threads calls ----------------

    def _metrics(self, _: Request) -> Response:
        with self._lock:  # one at a time: many who ask get the same
            at_s, text = self._scraped
            if self._monotonic_s() - at_s > SCRAPE_KEPT_S:
                now_s = self._monotonic_s()
                text = exposition.scrape(without_taken(self._board().facts), now_s)
                self._scraped = (now_s, text)
        return Response(text, media_type=exposition.CONTENT_TYPE)

    def _page_of(self, view: View) -> Callable[[Request], Response]:
        def page(_: Request) -> Response:
            board = self._board()
            if not board.is_loaded:
                return _answer(health.startup(board))
            found = view.of(without_keys(without_taken(board.facts)), self._monotonic_s())
            return Response(to_json(found), media_type="application/json")

        return page

    def _refused(self, request: Request, error: Exception) -> Response:
        """What is not there, or is not asked for in this way, in the form of other errors."""
        assert isinstance(error, HTTPException)
        said = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            said = NOT_THERE
            if self._queries is None and request.url.path.startswith("/api/stores"):
                said = NO_STORES
        return JSONResponse({"error": said}, error.status_code, error.headers)

    def _described(self, _: Request) -> Response:
        return JSONResponse(described(with_stores=self._queries is not None))

    def _topology(self, _: Request) -> Response:
        board = self._board()
        if not board.is_loaded:
            return _answer(health.startup(board))
        found = topology_of(board, queries=self._queries is not None)
        return Response(to_json(found), media_type="application/json")

    async def _about(self, request: Request) -> Response:
        if _wants_page(request.headers.raw):
            return static.start_page()
        facts = self._board().facts
        return Response(ABOUT.format(version=facts.version, application=facts.application))

    async def _live(self, _: Request) -> Response:
        return _answer(health.live(self._board(), self._monotonic_s()))

    async def _startup(self, _: Request) -> Response:
        return _answer(health.startup(self._board()))

    async def _ready(self, request: Request) -> Response:
        asked = request.query_params.get("within")
        try:
            within = None if asked is None else span_of(asked, "within")
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        return _answer(health.ready(self._board(), self._monotonic_s(), within))


def _other_host(headers: Headers) -> str | None:
    """The host that a request names, unless that is this machine."""
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    return next((host[:80] for host in hosts if not names_this_machine(host)), None)


def _is_free(path: str, headers: Headers) -> bool:
    """Whether no token is wanted: of probes, and of the page, which holds nothing yet."""
    if path in UNGUARDED or path.startswith(static.PREFIX):
        return True
    return path == "/" and _wants_page(headers)


def _wants_page(headers: Headers) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def _has_token(headers: Headers) -> bool:
    return any(n == b"authorization" and v[:7].lower() == b"bearer " for n, v in headers)


def _answer(found: health.Health) -> Response:
    if found.is_well:
        return JSONResponse({"ok": True})
    said = {"ok": False, "reasons": list(found.reasons), "workers": found.progress}
    return JSONResponse(said, 503)
