"""The options of `headrace run` that have metrics and health served."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from headrace.streams.errors import ConfigError
from headrace.streams.facts.board import Board
from headrace.streams.facts.web import SetLevel, open_web
from headrace.streams.seams.clients import Log


@dataclass(frozen=True, slots=True)
class Http:
    """What is to be served, and to whom."""

    address: str
    token_file: Path | None
    is_open: bool
    queries: bool = False


def http_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command is given an `Http`, or None."""

    @click.option("--http", metavar="[HOST:]PORT",
                  help="Serve metrics, health and JSON there; on this machine alone unless HOST "
                  "says otherwise. Needs pip install 'headrace[web]'.")  # fmt: skip
    @click.option("--http-token-file", type=click.Path(path_type=Path),
                  help="Holds the token that whoever asks must send, but for health.")  # fmt: skip
    @click.option("--http-open", is_flag=True,
                  help="Let everybody ask who can reach HOST.")  # fmt: skip
    @click.option("--queries", is_flag=True,
                  help="Serve what is in the stores, too: the application is loaded beside the "
                  "workers for its serdes.")  # fmt: skip
    @wraps(command)
    def given(
        http: str | None,
        http_token_file: Path | None,
        http_open: bool,
        queries: bool,
        **others: Any,
    ) -> Any:
        if http is None and (http_token_file is not None or http_open or queries):
            raise click.UsageError("--http-token-file, --http-open and --queries go with --http")
        asked = None if http is None else Http(http, http_token_file, http_open, queries)
        return command(http=asked, **others)

    return given


class _RefusedAddressError(click.ClickException):
    """A wrong command line that is no question of how options are written: no usage is printed."""

    exit_code = click.UsageError.exit_code


@contextmanager
def served(
    http: Http | None,
    board: Callable[[], Board],
    log: Log,
    set_level: SetLevel,
    queries: Callable[[], object],
    *,
    advertise: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Serve what was asked for until the block ends.

    Args:
        http: what was asked for.
        board: gives how everything is now.
        log: says that it began.
        set_level: changes what is logged.
        queries: gives what stores are asked with, if they may be.
        advertise: is told where other hosts reach the stores, before anybody is answered.

    Raises:
        ClickException: it cannot be; nothing else was begun.
    """
    if http is None:
        yield
        return
    is_told = threading.Event()

    def answered() -> object:
        is_told.wait()
        return queries()

    try:
        server = open_web(
            board,
            http.address,
            log=log,
            token_file=http.token_file,
            is_open=http.is_open,
            set_level=set_level,
            queries=answered if http.queries else None,
        )
    except ConfigError as error:
        raise _RefusedAddressError(f"--http: {error}") from error
    with server:
        if http.queries:
            advertise(reached_at(server.url))
        is_told.set()
        yield


def reached_at(url: str) -> str:
    """Where other hosts reach what is served here, as far as that can be told: HOST:PORT.

    An address that stands for all of this machine becomes the one by which it reaches others.

    >>> reached_at("http://127.0.0.1:9464"), reached_at("http://[::1]:80")
    ('127.0.0.1:9464', '[::1]:80')
    """
    host, _, port = url.partition("://")[2].rpartition(":")
    anywhere = {"0.0.0.0": socket.AF_INET, "[::]": socket.AF_INET6}  # noqa: S104
    if host in anywhere:
        host = _own_address(anywhere[host])
    return f"{host}:{port}"


def _own_address(family: socket.AddressFamily) -> str:
    to = ("192.0.2.1", 9) if family == socket.AF_INET else ("2001:db8::1", 9)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect(to)  # of documentation: nothing is sent, and the way there is looked up
            found = str(asked.getsockname()[0])
    except OSError:
        return socket.gethostname()
    return f"[{found}]" if ":" in found else found
