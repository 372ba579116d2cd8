"""The files of the live page, as they are in the package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
START = "index.html"
PREFIX = "/page/"
_HEADERS = {
    # Nothing of another host, nothing that was written into the page by a name or a key.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def contents() -> dict[str, bytes]:
    """The files, by name."""
    found = files("headrace.streams_web").joinpath("page")
    return {
        one.name: one.read_bytes()
        for one in found.iterdir()
        if one.name.rpartition(".")[2] in _KINDS
    }


def start_page() -> Response:
    """The page, which asks for everything else."""
    return _file(START)


def routes() -> Iterator[Route]:
    """A route for each file: no path of a request becomes one of the machine."""
    for name in contents():
        yield Route(f"{PREFIX}{name}", _page(name))


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return _file(name)

    return page


def _file(name: str) -> Response:
    return Response(contents()[name], media_type=_KINDS[name.rpartition(".")[2]], headers=_HEADERS)
