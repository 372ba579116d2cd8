"""The command `headrace check`: what an upgrade of an application would trip over."""

from __future__ import annotations

import sys

import click

from streams.cli_options import load, said_errors, settings_option, target_argument
from topology.unnamed import unnamed_steps

__all__ = ["check"]

_WHY = """\
Such a name has a number that counts the steps of the program. When a step is added or removed in
front of it, it gets another number: its state begins empty, and what is in its repartition topic is
not read to the end. Give names to all of them at once, as a named store takes no number. A name
that is new begins empty too; to keep what a deployed application has, give each the very name that
is printed here."""


@click.command()
@target_argument
@click.option("--strict", is_flag=True, help="End with exit code 1 if anything has no name.")
@settings_option
def check(target: str, strict: bool, settings: dict[str, str]) -> None:
    """List the stores and repartition topics of an application that have no name of their own.

    MODULE:APP is what `headrace run` takes. No cluster is asked.
    """
    with said_errors():
        app = load(target, settings)
    found = list(unnamed_steps(plan.program.sub_topology for plan in app.plans))
    if not found:
        click.echo("Every store and every repartition topic has a name of its own.")
        return
    for unnamed in found:
        click.echo(str(unnamed))
    click.echo(f"\n{_WHY}")
    if strict:
        sys.exit(1)
