"""The way to the web room, which needs libraries of its own and is loaded when it is asked for."""

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
"""Has what runs log from a level on, and tells what follows, in words.

It raises ValueError for a level that there is not, and TimeoutError where nobody listens."""


class WebServer(Protocol):
    """Serves metrics, health and JSON until it is closed."""

    @property
    def url(self) -> str:
        """Where it is."""

    def close(self) -> None:
        """Stop to serve."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_web(
    board: Callable[[], HealthSnapshot],
    address: str,
    *,
    log: Log,
    token_file: Path | None = None,
    is_open: bool = False,
    set_level: SetLevel | None = None,
    queries: Callable[[], object] | None = None,
) -> WebServer:
    """Serve how an application does; see `headrace.streams_web.server`.

    Args:
        board: gives how everything is now.
        address: ``[HOST:]PORT``.
        log: says that it began.
        token_file: holds what whoever asks must have, but for health.
        is_open: whether everybody may ask who can reach it.
        queries: gives the application's `headrace.streams.queries.queries.Queries`; None where
            its stores may not be asked for.

    Raises:
        ConfigError: the extra is not installed, or the address cannot be served on.
    """
    try:
        # By its name: this room knows none below it.
        serve = import_module("headrace.streams_web.server").serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise ConfigError(
            f"to serve metrics and health {error.name} is needed, and not installed; "
            "pip install 'headrace[web]'"
        ) from error
    server: WebServer = serve(
        board,
        address,
        log=log,
        token_file=token_file,
        is_open=is_open,
        set_level=set_level,
        queries=queries,
    )
    return server
