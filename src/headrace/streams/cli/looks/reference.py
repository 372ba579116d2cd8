"""The commands `headrace settings` and `headrace exit-codes`: what documentation says, here."""

from __future__ import annotations

import re

import click

from headrace.streams.cli.options import said_errors
from headrace.streams.cli.tables import columns, show
from headrace.streams.supervise.exit_codes import TABLE

_MARKS = re.compile(r"\[([^]]*)\]\([^)]*\)")


@click.command()
@click.argument("name", required=False)
def settings(name: str | None) -> None:
    """Show all settings, with what they take, their default and what they mean.

    With NAME, such as commit.interval.ms or consumer.session.timeout.ms, only this one, or those
    that have NAME in theirs.
    """
    from headrace.streams.config.settings_reference import listing, of_name

    with said_errors():
        click.echo("\n".join(listing() if name is None else of_name(name)))


@click.command("exit-codes")
def exit_codes() -> None:
    """Show what the exit codes of `headrace run` mean, which other commands end with, too.

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
