"""The command `headrace reset`: say what a reset would do, and do it when that is wanted."""

from __future__ import annotations

from typing import Any

import click

from headrace.streams.cli.options import (
    WHERE,
    confirm,
    load,
    said_errors,
    settings_option,
    target_argument,
    where,
)
from headrace.streams.kafka.broker_contact import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.seams.group_facts import Target
from headrace.streams.secrets import over
from headrace.streams.settings import given_by
from headrace.streams.upgrade.reset import Reset, refuse_backfill, refuse_members
from headrace.streams.upgrade.reset_plan import ResetPlan, lines


@click.command()
@target_argument
@click.option(
    "--to",
    "aim",
    metavar="WHERE",
    callback=where,
    default="beginning",
    show_default=True,
    help=f"Where the inputs are set to, tables aside: {WHERE}",
)
@click.option(
    "--topic",
    "inputs",
    multiple=True,
    metavar="TOPIC",
    help="Set this input alone; may be repeated. Tables go to the beginning with it.",
)
@click.option(
    "--all-internal",
    is_flag=True,
    help="Delete topics too that are called like internal ones and are not of this topology.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and end.")
@click.option("--yes", is_flag=True, help="Do it without a question.")
@click.option("--state-dir", metavar="DIRECTORY", help="The setting state.dir.")
@settings_option
def reset(
    target: str,
    aim: Target,
    inputs: tuple[str, ...],
    all_internal: bool,
    dry_run: bool,
    yes: bool,
    state_dir: str | None,
    settings: dict[str, Any],
) -> None:
    """Take a stopped application back to a beginning.

    Sets the offsets of its inputs, deletes its repartition topics and changelogs, and removes its
    state on this host. What would be done is always printed first.

    MODULE:APP is what `headrace run` takes.
    """
    if state_dir is not None:
        settings = over(settings, given_by({"state.dir": state_dir}, "--state-dir"))
    with said_errors():
        app = load(target, settings)
        timeout_s = app.config.task_timeout_ms / 1000
        reach(app.config.admin_config())
        work = Reset(
            app.config.application_id,
            app.plans,
            GroupAdmin(app.config.admin_config(), timeout_s=timeout_s),
            state_dir=app.config.state_dir,
            timeout_s=timeout_s,
            global_topics=[plan.topic for plan in app.global_plans],
        )

        def look() -> ResetPlan:
            return work.plan(aim, inputs=inputs, all_internal=all_internal)

        plan = look()
        click.echo("\n".join(lines(plan)))
        if dry_run:
            click.echo("Nothing was done (--dry-run).")
            return
        refuse_members(plan.group, plan.members)
        refuse_backfill(plan.group, plan.backfill)
        if not yes:
            confirm()
        work.carry_out(plan, look)
        click.echo("Done. The application can be started.")
