"""The commands `headrace scale` and `headrace log-level`, which change a running application."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from headrace.streams import logs
from headrace.streams.cli.options import settings_option
from headrace.streams.config.config import user_state_dir
from headrace.streams.supervisor.control_socket import ControlError, find_running
from headrace.streams.supervisor.supervisor import WORKERS_MAX


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a `headrace run` process; settings may select it, too."""
    for option in (
        settings_option,
        click.option("--process", type=int, metavar="PID", help="The process of `headrace run`, "
                     "where several run one application here."),
        click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIRECTORY",
                     help="Where its state is, over its setting state.dir."),
        click.option("--application", metavar="ID", help="Its application.id, where several "
                     "applications run here."),
    ):  # fmt: skip
        command = option(command)
    return command


def _ask(
    request: dict[str, object],
    settings: Mapping[str, Any],
    application: str | None,
    state_dir: Path | None,
    process: int | None,
) -> None:
    base = state_dir or settings.get("state.dir") or user_state_dir(os.environ)
    try:
        found = find_running(
            Path(base), application=application or settings.get("application.id"), process=process
        )
        click.echo(found.ask(request))
    except ControlError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("workers", type=click.IntRange(1, WORKERS_MAX))
@_which
def scale(
    workers: int,
    settings: dict[str, Any],
    application: str | None,
    state_dir: Path | None,
    process: int | None,
) -> None:
    """Have WORKERS worker processes in a `headrace run` of this host that runs already.

    New ones join the group. Those that are too many commit, close, and leave it, whatever on.stop
    says, and the others get their tasks. Workers that crash are started again as before.
    """
    _ask({"scale": workers}, settings, application, state_dir, process)


@click.command()
@click.argument("level", type=click.Choice(logs.LEVELS))
@_which
def log_level(
    level: str,
    settings: dict[str, Any],
    application: str | None,
    state_dir: Path | None,
    process: int | None,
) -> None:
    """Log from LEVEL on in a `headrace run` of this host that runs already.

    It holds for its workers, those that are started later too, until it ends. What debug adds to
    info is what the Kafka clients say of themselves: nothing for as long as all is well.
    """
    _ask({"log_level": level}, settings, application, state_dir, process)
