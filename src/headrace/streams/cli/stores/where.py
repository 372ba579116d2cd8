"""The options of `headrace store` that say where the rows are."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from headrace.streams.cli.options import settings_option
from headrace.streams.cli.stores.sources import Where


def _takes_place(command: Callable[..., Any]) -> Callable[..., Any]:

    @click.option("--app", "target", metavar="MODULE:APP",
                  help="The application, whose files on this host are read.")  # fmt: skip
    @click.option("--url", metavar="URL",
                  help="Where `headrace run --http ... --queries` of any host serves, such as "
                  "http://host:9464: all hosts are asked.")  # fmt: skip
    @click.option("--http-token-file", "token_file", type=click.Path(path_type=Path),
                  help="With --url: holds the token that it wants.")  # fmt: skip
    @click.option("--state-dir", type=click.Path(file_okay=False, path_type=Path),
                  help="Where its state is, over its setting state.dir.")  # fmt: skip
    @wraps(command)
    def given(
        target: str | None,
        url: str | None,
        token_file: Path | None,
        state_dir: Path | None,
        settings: dict[str, Any],
        max_age: str | None = None,
        **others: Any,
    ) -> Any:
        where = Where(
            target=target,
            url=url,
            token_file=token_file,
            state_dir=state_dir,
            max_age=max_age,
            settings=settings,
        )
        return command(where=where, **others)

    return given


def takes_application(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add those that say which application; the command is given a `Where`."""
    return _takes_place(settings_option(command))


def takes_where(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add those, and how old rows may be."""
    with_age = click.option("--max-age", metavar="SPAN",
                            help="Refuse rows that may lack changes of a longer time, such as 10s "
                            "or 24h. Unless given, what a task that moved away has left behind for "
                            "more than a minute is refused.")  # fmt: skip
    return _takes_place(with_age(settings_option(command)))
