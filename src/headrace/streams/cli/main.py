"""The command line `headrace`.

A command lives beside what it commands; `_COMMANDS` names where. Packages above this one offer
theirs as entry points of the group `headrace.commands`. Either is imported when it is asked for, so
that `headrace --help` loads neither Kafka's client nor a store.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

GROUP: Final = "headrace.commands"
"""Each entry point of this group is a click command, called as the entry point is."""

_COMMANDS: Final = {
    "broker": ("headrace.streams.devbroker.commands:broker", "Run a real Kafka on this machine."),
    "changelog": ("headrace.streams.cli.changelog:changelog", "Write changelogs that are gone."),
    "check": (
        "headrace.streams.cli.check:check",
        "Find what an upgrade of an application would trip over.",
    ),
    "describe": (
        "headrace.streams.cli.describe:describe",
        "Show what an application computes, as text, code or a picture.",
    ),
    "dev": (
        "headrace.streams.cli.dev.dev:dev",
        "Run an application while it is written, started again with each save.",
    ),
    "exit-codes": (
        "headrace.streams.cli.looks.reference:exit_codes",
        "Show what exit codes mean.",
    ),
    "feed": (
        "headrace.streams.cli.feeding.command:feed",
        "Write rows of files or of a database to a topic, each of them once.",
    ),
    "lag": ("headrace.streams.cli.looks.lag:lag", "Show how far an application is behind."),
    "log-level": (
        "headrace.streams.control.commands:log_level",
        "Change what a running `headrace run` logs.",
    ),
    "mirror": (
        "headrace.streams.cli.mirroring.command:mirror",
        "Copy topics of one cluster to another, each record once, and move groups there.",
    ),
    "offsets": (
        "headrace.streams.cli.offsets:offsets",
        "Show where an application's inputs stand, and set them.",
    ),
    "reset": (
        "headrace.streams.cli.reset:reset",
        "Take a stopped application back to a beginning.",
    ),
    "rights": (
        "headrace.streams.cli.rights:rights",
        "Say which rights an application needs, and grant them.",
    ),
    "run": ("headrace.streams.cli.run:run", "Run an application in worker processes."),
    "scale": (
        "headrace.streams.control.commands:scale",
        "Change how many workers a running `headrace run` has.",
    ),
    "settings": (
        "headrace.streams.cli.looks.reference:settings",
        "Show settings, and what they mean.",
    ),
    "skip": (
        "headrace.streams.cli.skip:skip",
        "Leave out a record that an application cannot process.",
    ),
    "store": (
        "headrace.streams.cli.stores.group:store",
        "Read the stores of an application, running or not.",
    ),
    "tasks": ("headrace.streams.cli.looks.lag:tasks", "Show which worker has which task."),
    "top": (
        "headrace.streams.cli.looks.top:top",
        "Show how an application goes on, in a table that is refreshed.",
    ),
    "topics": (
        "headrace.streams.cli.topics.commands:topics",
        "Make topics, look into them, and write to them.",
    ),
    "transactions": (
        "headrace.streams.cli.looks.transactions:transactions",
        "Find transactions that never end, and end them.",
    ),
    "try": (
        "headrace.streams.cli.try_app:try_app",
        "Run an application on files, without Kafka.",
    ),
}


class _LazyGroup(click.Group):
    """A group with the commands of `_COMMANDS` and of entry points, besides those registered."""

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
    """The commands that other packages bring."""
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
    except Exception:  # whatever is wrong with it, the other commands are still to be seen
        return f"Cannot be loaded ({offered.value})."


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def main() -> None:
    """Headrace: stream processing on Kafka for Python."""
