"""The command line `headrace`.

A command is defined in the package that it controls; `_COMMANDS` has its location. Other packages
add commands as entry points of the group `headrace.commands`. Each command is imported on use, so
that `headrace --help` loads neither the Kafka client nor a store.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

from headrace.streams.cli.options import columns, said_errors, show
from headrace.streams.supervisor.exit_codes import TABLE

# The commands `headrace settings` and `headrace exit-codes`: reference documentation.


_MARKS = re.compile(r"\[([^]]*)\]\([^)]*\)")


@click.command()
@click.argument("name", required=False)
def settings(name: str | None) -> None:
    """Print all settings with type, default and meaning.

    With NAME, such as commit.interval.ms or consumer.session.timeout.ms, only this one, or those
    that have NAME in theirs.
    """
    from headrace.streams.config.settings_reference import listing, of_name

    with said_errors():
        click.echo("\n".join(listing() if name is None else of_name(name)))


@click.command("exit-codes")
def exit_codes() -> None:
    """Print the exit codes of `headrace run` and other commands.

    Beside them, 1 is the answer "no" of commands that say so, such as `headrace lag --above`.
    """
    table = columns("code", "error", "when", "start it again?", numbers=("code",))
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
    "broker": ("headrace.streams.devbroker.commands:broker", "Run a real Kafka on this machine."),
    "changelog": ("headrace.streams.cli.offsets:changelog", "Write changelogs that are gone."),
    "check": (
        "headrace.streams.cli.check:check",
        "Find what an upgrade of an application would trip over.",
    ),
    "describe": (
        "headrace.streams.cli.describe:describe",
        "Show what an application computes, as text, code or a picture.",
    ),
    "dev": (
        "headrace.streams.cli.dev:dev",
        "Run an application while it is written, started again with each save.",
    ),
    "exit-codes": (
        "headrace.streams.cli.main:exit_codes",
        "Show what exit codes mean.",
    ),
    "feed": (
        "headrace.streams.cli.feed:feed",
        "Write rows of files or of a database to a topic, each of them once.",
    ),
    "lag": ("headrace.streams.cli.lag:lag", "Show how far an application is behind."),
    "log-level": (
        "headrace.streams.cli.control:log_level",
        "Change what a running `headrace run` logs.",
    ),
    "mirror": (
        "headrace.streams.cli.mirror:mirror",
        "Copy topics of one cluster to another, each record once, and move groups there.",
    ),
    "offsets": (
        "headrace.streams.cli.offsets:offsets",
        "Show where an application's inputs stand, and set them.",
    ),
    "reset": (
        "headrace.streams.cli.offsets:reset",
        "Take a stopped application back to a beginning.",
    ),
    "rights": (
        "headrace.streams.cli.rights:rights",
        "Say which rights an application needs, and grant them.",
    ),
    "run": ("headrace.streams.cli.run:run", "Run an application in worker processes."),
    "scale": (
        "headrace.streams.cli.control:scale",
        "Change how many workers a running `headrace run` has.",
    ),
    "settings": (
        "headrace.streams.cli.main:settings",
        "Show settings, and what they mean.",
    ),
    "skip": (
        "headrace.streams.cli.offsets:skip",
        "Leave out a record that an application cannot process.",
    ),
    "store": (
        "headrace.streams.cli.stores:store",
        "Read the stores of an application, running or not.",
    ),
    "tasks": ("headrace.streams.cli.lag:tasks", "Show which worker has which task."),
    "top": (
        "headrace.streams.cli.top:top",
        "Show how an application goes on, in a table that is refreshed.",
    ),
    "topics": (
        "headrace.streams.cli.topics:topics",
        "Make topics, look into them, and write to them.",
    ),
    "transactions": (
        "headrace.streams.cli.transactions:transactions",
        "Find transactions that never end, and end them.",
    ),
    "try": (
        "headrace.streams.cli.try_app:try_app",
        "Run an application on files, without Kafka.",
    ),
}


class _LazyGroup(click.Group):
    """Command group that imports the commands of `_COMMANDS` and of entry points on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS, *_offered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
            return _as_command(cmd_name, getattr(import_module(module), attribute))
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


def _as_command(name: str, found: object) -> click.Command:
    assert isinstance(found, click.Command), f"{name} is not a click command"
    return found


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
