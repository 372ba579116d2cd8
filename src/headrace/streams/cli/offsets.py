"""The command `headrace offsets`: where an application's inputs stand, and setting them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from headrace.streams.cli.looks.missing import require_topics
from headrace.streams.cli.options import (
    WHERE,
    confirm,
    load,
    said_errors,
    settings_option,
    target_argument,
    where,
)
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.broker_contact import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.seams.group_facts import Target
from headrace.streams.upgrade.offset_moves import (
    GroupOffsets,
    MovePlan,
    Wanted,
    lines,
    listing,
    read_offsets,
)
from headrace.streams.upgrade.offsets import InputOffsets
from headrace.streams.upgrade.reset import refuse_members
from headrace.streams.views.look import unmade_of

_TOPIC = re.compile(r"([^:]+)(?::([0-9]+(?:,[0-9]+)*))?")


@click.group()
def offsets() -> None:
    """Show where an application's inputs stand, and set them."""


@offsets.command("list")
@target_argument
@settings_option
def list_offsets(target: str, settings: dict[str, Any]) -> None:
    """Show for each input partition what is committed, and what the topic has.

    Where a topic that it reads does not exist the exit code is 4.

    MODULE:APP is what `headrace run` takes.
    """
    with said_errors():
        work = _work(target, settings)
        found = work.look()
        click.echo("\n".join(listing(found)))
        offsets = [one.committed for one in found.inputs.values() if one.committed is not None]
        # What a worker commits has a note beside it, what a reset does has none.
        has_worked = any(one.metadata for one in offsets)
        unmade = () if has_worked else unmade_of(work.plans, found.missing)
        require_topics(name for name in found.missing if name not in unmade)


def _work(target: str, settings: dict[str, Any]) -> InputOffsets:
    app = load(target, settings)
    config = app.config
    reach(config.admin_config())
    cluster = GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    return InputOffsets(config.application_id, app.plans, cluster, exactly_once=config.exactly_once)


def _named(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Topics with some of their partitions; none stands for all."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        parts = _TOPIC.fullmatch(text)
        if parts is None:
            raise click.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:0,1")
        if parts[1] in found:
            raise click.BadParameter(f"{parts[1]} is named twice; write {parts[1]}:0,1")
        found[parts[1]] = tuple(map(int, parts[2].split(","))) if parts[2] else ()
    return found


@offsets.command("set")
@target_argument
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,...]",
    callback=_named,
    help="An input, or some of its partitions; may be repeated.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="P",
    help="Of the one --topic; may be repeated.",
)
@click.option(
    "--to",
    "aim",
    metavar="WHERE",
    callback=where,
    help=WHERE,
)
@click.option(
    "--from-file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Lines topic,partition,offset, in place of --topic and --to.",
)
@click.option(
    "--process-again",
    is_flag=True,
    help="Under exactly-once: records that were processed may be processed again.",
)
@click.option(
    "--leave-out",
    is_flag=True,
    help="Under exactly-once: records that were not processed may be left out.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be set, and end.")
@click.option("--yes", is_flag=True, help="Do it without a question.")
@settings_option
def set_offsets(
    target: str,
    topics: dict[str, tuple[int, ...]],
    partitions: tuple[int, ...],
    aim: Target | None,
    file: Path | None,
    process_again: bool,
    leave_out: bool,
    dry_run: bool,
    yes: bool,
    settings: dict[str, Any],
) -> None:
    """Set offsets of a stopped application's inputs; its state stays as it is.

    What would be set is always printed first, with what follows from it. Under exactly-once, moves
    that count records twice or never are refused without the option that asks for that.

    MODULE:APP is what `headrace run` takes.
    """
    if partitions:
        if len(topics) != 1 or any(topics.values()):
            raise click.UsageError("--partition goes with one --topic TOPIC")
        topics = dict.fromkeys(topics, partitions)
    complete = not (topics or aim) if file is not None else topics and aim
    if not complete:
        raise click.UsageError("say --topic and --to, or --from-file alone")
    with said_errors():
        wanted = None if file is None else _read(file)
        work = _work(target, settings)

        def choose(found: GroupOffsets) -> Wanted:
            if wanted is not None:
                return wanted
            assert aim is not None
            return dict.fromkeys(_places(found, topics), aim)

        plan = work.plan(choose)
        click.echo("\n".join(lines(plan)))
        if dry_run:
            click.echo("Nothing was set (--dry-run).")
            return
        _refuse(plan, again=process_again, left_out=leave_out)
        if not yes:
            confirm()
        shown = {move.input.place: Target("offset", move.target) for move in plan.moves}
        work.carry_out(plan, lambda: work.plan(lambda _: shown))
        click.echo(f"Done. {_next_step(plan)}")


def _next_step(plan: MovePlan) -> str:
    names = ", ".join(map(str, plan.left_without))
    if not names:
        return "The application can be started."
    if plan.found.exactly_once:
        return f"A start is refused until {names} have their offsets, too."
    return f"A start counts the records of {names} from where auto.offset.reset says."


def _refuse(plan: MovePlan, *, again: bool, left_out: bool) -> None:
    refuse_members(plan.found.group, plan.found.members)
    plan.found.refuse_changes()
    plan.refuse_unasked(again=again, left_out=left_out)


def _places(found: GroupOffsets, topics: dict[str, tuple[int, ...]]) -> list[TopicPartition]:
    return [place for topic, some in topics.items() for place in found.chosen(topic, some)]


def _read(file: Path) -> Wanted:
    try:
        return read_offsets(file.read_text().splitlines())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
