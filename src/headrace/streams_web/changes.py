"""Changes over HTTP, with their permissions: the log level."""

from __future__ import annotations

import json

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.streams.logs import LEVELS
from headrace.streams.web import SetLevel

LOG_LEVEL = "/api/log-level"
BODY_MAX = 1_024


class AdminRequests:
    """Changes that are allowed over HTTP: the log level, with a token.

    `is_closed` rejects all changes, because the server accepts requests without a token.
    """

    def __init__(self, set_level: SetLevel | None, *, is_closed: bool) -> None:
        self._set_level = set_level
        self._is_closed = is_closed

    async def log_level(self, request: Request) -> Response:
        """Handle a POST of ``{"level": "debug"}``."""
        if self._set_level is None:
            return _refused(404, "the log's level cannot be changed here")
        if self._is_closed:
            return _refused(403, "who changes something needs a token: --http-token-file FILE")
        # Foreign web pages in a local browser can send other content types without a preflight.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return _refused(415, "send it with Content-Type: application/json")
        level = _level(await _body(request))
        if level is None:
            return _refused(400, f'send {{"level": "…"}} with one of {", ".join(LEVELS)}')
        try:
            return JSONResponse({"said": await run_in_threadpool(self._set_level, level)})
        except TimeoutError:
            return _refused(503, "nobody listens; it may be stopping")


def _refused(code: int, why: str) -> Response:
    return JSONResponse({"error": why}, code)


async def _body(request: Request) -> bytes:
    """Return empty bytes if it is too large."""
    body = b""
    async for more in request.stream():
        body += more
        if len(body) > BODY_MAX:
            return b""
    return body


def _level(body: bytes) -> str | None:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    level = asked["level"] if isinstance(asked, dict) and asked.keys() == {"level"} else None
    return level if level in LEVELS else None
