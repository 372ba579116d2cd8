"""The command line `headrace`.

Most commands are modules of this package; `_COMMANDS` has the location of each. Other packages add
commands as entry points of the group `headrace.commands`. Each command is imported on use, so
that `headrace --help` loads neither the Kafka client nor a store.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

from headrace.streams.cli.options import cli_errors, columns, show
from headrace.streams.supervisor.exit_codes import TABLE

_MARKS = re.compile(r"\[([^]]*)\]\([^)]*\)")


@click.command()
@click.argument("name", required=False)
def settings(name: str | None) -> None:
    """Print the settings with type, default and meaning.

    With NAME, such as commit.interval.ms or consumer.session.timeout.ms, print this setting, or the
    settings whose names contain NAME.
    """
    from headrace.streams.config.settings_reference import listing, of_name

    with cli_errors():
        click.echo("\n".join(listing() if name is None else of_name(name)))


@click.command("exit-codes")
def exit_codes() -> None:
    """Print the exit codes of `headrace run` and other commands.

    In addition, 1 is the answer "no" of commands such as `headrace lag --above`.
    """
    table = columns("code", "error", "when", "restart?", numbers=("code",))
    for ending in sorted(TABLE, key=lambda one: one.code):
        error = "" if ending.error is None else ending.error.__name__
        again, when = (
            _MARKS.sub(r"\1", text).replace("`", "") for text in (ending.again, ending.when)
        )
        table.add_row(str(int(ending.code)), error, when, again)
    show(table)


GROUP: Final = "headrace.commands"
"""Entry point group of further click commands; the entry point's name is the command's name."""

_COMMANDS: Final = {
    "acls": ("cli.acls:acls", "Print or grant the ACLs of an application."),
    "broker": ("devbroker.commands:broker", "Run a Kafka broker on this machine."),
    "changelog": ("cli.offsets:changelog", "Restore lost changelogs."),
    "check": ("cli.check:check", "Find problems of an upgrade in advance."),
    "describe": ("cli.describe:describe", "Print a topology as text, code or a picture."),
    "dev": ("cli.dev:dev", "Run an application and restart it on each save."),
    "exit-codes": ("cli.main:exit_codes", "Print the exit codes."),
    "feed": ("cli.feed:feed", "Write rows of files or of a database to a topic."),
    "lag": ("cli.lag:lag", "Print the lag of an application."),
    "log-level": ("cli.control:log_level", "Change the log level of a running application."),
    "mirror": ("cli.mirror:mirror", "Copy topics and groups to another cluster."),
    "offsets": ("cli.offsets:offsets", "Print or set committed offsets."),
    "reset": ("cli.offsets:reset", "Reset a stopped application."),
    "run": ("cli.run:run", "Run an application in worker processes."),
    "scale": ("cli.control:scale", "Change the number of running workers."),
    "settings": ("cli.main:settings", "Print the settings and their meaning."),
    "skip": ("cli.offsets:skip", "Skip a record that cannot be processed."),
    "store": ("cli.stores:store", "Read the stores of an application."),
    "tasks": ("cli.lag:tasks", "Print the tasks and their workers."),
    "top": ("cli.top:top", "Monitor an application in a live table."),
    "topics": ("cli.topics:topics", "Create, inspect and write topics."),
    "transactions": ("cli.transactions:transactions", "Find and abort hanging transactions."),
    "try": ("cli.try_app:try_app", "Run an application on files, without Kafka."),
}
"""Location in `headrace.streams`, and summary."""
_ALIASES: Final = {"rights": "acls"}
"""Former names of commands, which still work and are not listed."""


class _LazyGroup(click.Group):
    """Command group that imports the commands of `_COMMANDS` and of entry points on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS, *_offered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if cmd_name in _COMMANDS:
            module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
            return _as_command(
                cmd_name, getattr(import_module(f"headrace.streams.{module}"), attribute)
            )
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _offered():
            return own
        return _loaded(_offered()[cmd_name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in _COMMANDS:
                rows.append((name, _COMMANDS[name][1]))
            elif (command := self.commands.get(name)) is not None:
                if not command.hidden:
                    rows.append((name, command.get_short_help_str()))
            else:
                rows.append((name, _help_of(_offered()[name])))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _offered() -> dict[str, EntryPoint]:
    return {one.name: one for one in entry_points(group=GROUP)}


def _as_command(name: str, loaded: object) -> click.Command:
    assert isinstance(loaded, click.Command), f"{name} is not a click command"
    return loaded


def _loaded(offered: EntryPoint) -> click.Command:
    try:
        return _as_command(offered.name, offered.load())
    except (ImportError, AttributeError, AssertionError) as error:
        raise click.ClickException(
            f"the command {offered.name} ({offered.value}) cannot be loaded: {error}"
        ) from error


def _help_of(offered: EntryPoint) -> str:
    try:
        return _loaded(offered).get_short_help_str(limit=80)
    except Exception:  # a broken command must not hide the others
        return f"Cannot be loaded ({offered.value})."


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def main() -> None:
    """Headrace: stream processing on Kafka for Python."""
