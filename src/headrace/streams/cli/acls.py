"""The command `headrace acls`: the ACLs that the user of an application requires."""

from __future__ import annotations

from typing import Any

import click

from headrace.streams.cli.known_topics import Known
from headrace.streams.cli.options import cli_errors, confirm, settings_option, target_argument
from headrace.streams.devbroker.errors import DevBrokerError
from headrace.streams.devbroker.users import Users
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.acls import Right, of_application


@click.command()
@target_argument
@click.option(
    "--user", required=True, metavar="NAME", help="User of the application, without User:."
)
@click.option(
    "--grant", is_flag=True, help="Grant the ACLs, with the settings of an administrator."
)
@click.option(
    "--revoke", is_flag=True, help="Revoke the ACLs, with the settings of an administrator."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@settings_option
def acls(
    target: str, user: str, grant: bool, revoke: bool, yes: bool, settings: dict[str, Any]
) -> None:
    """Print or grant the ACLs that an application needs.

    They cover the topics, the group and the transactions of the application, without topics that
    functions or handlers choose at runtime. Existing ACLs of the user are kept. --grant and
    --revoke require the settings of an administrator.
    """
    if grant and revoke:
        raise click.UsageError("--grant and --revoke exclude each other.")
    with cli_errors():
        known = Known.of(target, settings)
        needed = _needed(known)
        for right in needed:
            click.echo(f"User:{user}: {right}")
        if not (grant or revoke):
            return
        admin = {name: text for name, text in known.reach().items() if name != "client.id"}
        confirm(yes=yes)
        try:
            users = Users(admin)
            (users.grant if grant else users.revoke)(user, needed)
        except DevBrokerError as error:
            raise FatalClientError(str(error)) from error
        click.echo("Granted." if grant else "Revoked.")


def _needed(known: Known) -> list[Right]:
    own = known.own
    outputs = [name for name, use in own.items() if "writes" in use]
    sources = [name for name, use in own.items() if use.startswith("reads")]
    return of_application(known.config.application_id, sources=sources, outputs=outputs)
