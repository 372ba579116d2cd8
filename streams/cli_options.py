"""What several commands share: the application that they name, and settings over its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from streams.errors import StreamsError
from topology.errors import TopologyError

if TYPE_CHECKING:
    from streams.app import KafkaStreams

__all__ = ["load", "said_errors", "settings_option", "target_argument"]


def _settings(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        settings[name.strip()] = value
    return settings


target_argument = click.argument("target", metavar="MODULE:APP")

settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="Set a setting, over what the application says; may be repeated.",
)


def load(target: str, settings: Mapping[str, Any]) -> KafkaStreams:
    """Import the application that a command names, with settings over its own; it does not run.

    Raises:
        ApplicationError: there is none.
        ConfigError: the settings are wrong.
    """
    from streams.app_loader import load_app
    from streams.restore import SilentRestoreListener
    from streams.worker import SilentListener

    app = load_app(target)
    if not settings:
        return app
    return app.derived(
        settings, worker_listener=SilentListener(), restore_listener=SilentRestoreListener()
    )


@contextmanager
def said_errors(code_of: Callable[[BaseException], int] | None = None) -> Iterator[None]:
    """Turn what a command's own work raises into one message and the error's exit code.

    Args:
        code_of: tells the code; None takes that of `headrace run`.
    """
    try:
        yield
    except (StreamsError, TopologyError) as error:
        from streams.exit_codes import exit_code_of

        click.echo(f"Error: {error}", err=True)
        sys.exit((code_of or exit_code_of)(error))
