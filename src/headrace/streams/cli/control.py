"""The commands `headrace scale` and `headrace log-level`, which change a running application."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from headrace.streams import logs
from headrace.streams.cli.options import settings_option
from headrace.streams.config.config import user_state_dir
from headrace.streams.supervisor.control_socket import ControlError, find_running
from headrace.streams.supervisor.supervisor import WORKERS_MAX


def _sends_request(command: Callable[..., dict[str, object]]) -> Callable[..., None]:
    """Add the options that select a `headrace run`, and send the command's result to it."""

    @click.option("--application", metavar="ID", help="The application.id, if several run here.")
    @click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIRECTORY",
                  help="The setting state.dir.")  # fmt: skip
    @click.option("--process", type=int, metavar="PID",
                  help="Process ID of `headrace run`, if several run here.")  # fmt: skip
    @settings_option
    @wraps(command)
    def send(
        application: str | None,
        state_dir: Path | None,
        process: int | None,
        settings: dict[str, Any],
        **others: Any,
    ) -> None:
        base = state_dir or settings.get("state.dir") or user_state_dir(os.environ)
        application = application or settings.get("application.id")
        try:
            found = find_running(Path(base), application=application, process=process)
            click.echo(found.send(command(**others)))
        except ControlError as error:
            raise click.ClickException(str(error)) from error

    return send


@click.command()
@click.argument("workers", type=click.IntRange(1, WORKERS_MAX))
@_sends_request
def scale(workers: int) -> dict[str, object]:
    """Set the number of worker processes of a running `headrace run` to WORKERS.

    New workers join the group. Surplus workers commit, close and leave the group regardless of
    on.stop, and the other workers get their tasks. Crashed workers are restarted as before.
    """
    return {"scale": workers}


@click.command()
@click.argument("level", type=click.Choice(logs.LEVELS))
@_sends_request
def log_level(level: str) -> dict[str, object]:
    """Set the log level of a running `headrace run` to LEVEL.

    It applies to current and later workers until the application ends. The level debug adds the log
    of the Kafka clients, which is often empty.
    """
    return {"log_level": level}
