"""The command `headrace changelog restore-from-local`: write changelogs that are gone anew."""

from __future__ import annotations

import sys
import time

import click

from headrace.streams.cli.options import (
    confirm,
    load,
    said_errors,
    settings_option,
    target_argument,
)
from headrace.streams.kafka.broker_contact import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.secrets import over
from headrace.streams.settings import given_by
from headrace.streams.upgrade.local_changelog_plan import lines
from headrace.streams.upgrade.local_changelogs import LocalChangelogs
from headrace.streams.upgrade.reset import refuse_members


@click.group()
def changelog() -> None:
    """Write changelogs that are gone."""


@changelog.command()
@target_argument
@click.option("--dry-run", is_flag=True, help="Say what would be done, and end.")
@click.option("--yes", is_flag=True, help="Do it without a question.")
@click.option("--state-dir", metavar="DIRECTORY", help="The setting state.dir.")
@settings_option
def restore_from_local(
    target: str, dry_run: bool, yes: bool, state_dir: str | None, settings: dict[str, str]
) -> None:
    """Write changelogs of a stopped application anew from the rows on this host.

    For changelogs that were deleted while the group has offsets: the application refuses to start
    then, as its state would begin empty. What would be done is always printed first. The exit code
    is 1 while rows of other hosts are still to be written.

    MODULE:APP is what `headrace run` takes.
    """
    if state_dir is not None:
        settings = over(settings, given_by({"state.dir": state_dir}, "--state-dir"))
    with said_errors():
        app = load(target, settings)
        config = app.config
        timeout_s = config.task_timeout_ms / 1000
        reach(config.admin_config())
        cluster = GroupAdmin(config.admin_config(), timeout_s=timeout_s)
        work = LocalChangelogs(
            config,
            app.plans,
            cluster,
            make_producer=lambda: PlainProducer(
                {**config.producer_config(None), "delivery.report.only.error": True},
                commit_offsets=lambda _: None,
                end_offsets=cluster.end_offsets,
                timeout_s=timeout_s,
            ),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        plan = work.plan()
        click.echo("\n".join(lines(plan)))
        if not plan.tasks:
            return
        if dry_run:
            click.echo("Nothing was done (--dry-run).")
            return
        refuse_members(plan.group, plan.members)
        if not yes:
            confirm()
        work.carry_out(plan)
        if plan.elsewhere:
            click.echo("Done here. The application cannot be started yet.")
            sys.exit(1)
        click.echo("Done. The application can be started.")
