"""The command line `headrace`.

A command lives beside what it commands; `_COMMANDS` names where. It is imported when it is
asked for, so that `headrace --help` loads neither Kafka's client nor a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

__all__ = ["main"]

_COMMANDS: Final = {
    "broker": ("streams.devbroker.commands:broker", "Run a real Kafka on this machine."),
    "check": ("streams.check_cli:check", "Find what an upgrade of an application would trip over."),
    "reset": ("streams.reset_cli:reset", "Take a stopped application back to a beginning."),
    "run": ("streams.run_cli:run", "Run an application in worker processes."),
    "topics": ("streams.topics_cli:topics", "Create topics."),
}


class _LazyGroup(click.Group):
    """A group that takes commands from `_COMMANDS` besides those registered on it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{cmd_name} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in _COMMANDS:
                rows.append((name, _COMMANDS[name][1]))
            elif (command := self.commands.get(name)) is not None and not command.hidden:
                rows.append((name, command.get_short_help_str()))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def main() -> None:
    """Headrace: stream processing on Kafka for Python."""
