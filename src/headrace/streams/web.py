"""Loader of the HTTP server, whose package has extra dependencies and is imported on demand."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, Self

from headrace.streams.errors import ConfigError
from headrace.streams.kafka.protocols import Log
from headrace.streams.metrics.snapshots import HealthSnapshot

NEEDED = ("starlette", "uvicorn", "h11")

SetLevel = Callable[[str], str]
"""Change the log level of the running application and return a message about the effect.

It raises ValueError for an unknown level, and TimeoutError if the application does not answer."""


class WebServer(Protocol):
    """HTTP server of metrics, health and JSON, which runs until it is closed."""

    @property
    def url(self) -> str:
        """URL of the server."""

    def close(self) -> None:
        """Stop serving."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_web(
    health: Callable[[], HealthSnapshot],
    address: str,
    *,
    log: Log,
    token_file: Path | None = None,
    is_open: bool = False,
    set_level: SetLevel | None = None,
    queries: Callable[[], object] | None = None,
) -> WebServer:
    """Serve metrics and health of an application; see `headrace.streams_web.server`.

    `address` is ``[HOST:]PORT``. `is_open` allows other hosts without a token. `queries` returns
    the application's `headrace.streams.queries.queries.Queries`.
    """
    try:
        # Imported by name: this package must not depend on `streams_web`.
        serve = import_module("headrace.streams_web.server").HttpServer
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise ConfigError(
            f"serving metrics and health requires {error.name}; run: pip install 'headrace[web]'"
        ) from error
    server: WebServer = serve(
        health,
        address,
        log=log,
        token_file=token_file,
        is_open=is_open,
        set_level=set_level,
        queries=queries,
    )
    return server
