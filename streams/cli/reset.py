"""The command `headrace reset`: say what a reset would do, and do it when that is wanted."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

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
from headrace.streams.seams.group_facts import Target
from headrace.streams.upgrade.reset import Reset, refuse_backfill, refuse_members
from headrace.streams.upgrade.reset_plan import ResetPlan, lines

_OPTION_OF = {"offset": "--offset", "datetime": "--datetime", "by-duration": "--duration"}
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _instant_ms(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a time; write 2026-01-31T09:00:00Z") from error
    return round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)


def _span_ms(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+)([smhd])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 30m, 12h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]


@click.command()
@target_argument
@click.option(
    "--to",
    type=click.Choice(["earliest", "latest", "offset", "datetime", "by-duration"]),
    default="earliest",
    show_default=True,
    help="Where the inputs are set to.",
)
@click.option("--offset", type=click.IntRange(min=0), help="With --to offset.")
@click.option(
    "--datetime",
    "instant_ms",
    metavar="TIME",
    callback=_instant_ms,
    help="With --to datetime: the first records of that time or later; UTC without a zone.",
)
@click.option(
    "--duration",
    "span_ms",
    metavar="SPAN",
    callback=_span_ms,
    help="With --to by-duration: so long before now, such as 90s, 30m, 12h, 7d.",
)
@click.option(
    "--input-topic",
    "inputs",
    multiple=True,
    metavar="TOPIC",
    help="Set the offsets of this input alone; may be repeated. Others stay where they are.",
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
    to: str,
    offset: int | None,
    instant_ms: int | None,
    span_ms: int | None,
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
    given = {"offset": offset, "datetime": instant_ms, "by-duration": span_ms}
    aim = _target(to, given, now_ms=time.time_ns() // 1_000_000)
    if state_dir is not None:
        settings = {**settings, "state.dir": state_dir}
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


def _target(to: str, given: dict[str, int | None], *, now_ms: int) -> Target:
    """Read `--to` with the option that belongs to it, and no other."""
    for kind, number in given.items():
        if kind == to and number is None:
            raise click.UsageError(f"--to {to} needs {_OPTION_OF[to]}")
        if kind != to and number is not None:
            raise click.UsageError(f"{_OPTION_OF[kind]} goes with --to {kind}, not with --to {to}")
    number = given.get(to) or 0
    if to == "offset":
        return Target("offset", number)
    if to == "datetime":
        return Target("time", max(0, number))
    if to == "by-duration":
        return Target("time", max(0, now_ms - number))
    return Target("latest" if to == "latest" else "earliest")
