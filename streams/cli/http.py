"""The options of `headrace run` that have metrics and health served."""

from __future__ import annotations

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
) -> Iterator[None]:
    """Serve what was asked for until the block ends.

    Args:
        http: what was asked for.
        board: gives how everything is now.
        log: says that it began.
        set_level: changes what is logged.
        queries: gives what stores are asked with, if they may be.

    Raises:
        ClickException: it cannot be; nothing else was begun.
    """
    if http is None:
        yield
        return
    try:
        server = open_web(
            board,
            http.address,
            log=log,
            token_file=http.token_file,
            is_open=http.is_open,
            set_level=set_level,
            queries=queries if http.queries else None,
        )
    except ConfigError as error:
        raise _RefusedAddressError(f"--http: {error}") from error
    with server:
        yield
