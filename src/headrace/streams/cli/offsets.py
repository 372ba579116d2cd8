"""The commands `headrace offsets`, `reset`, `skip` and `changelog`: committed input positions."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Message

from headrace.streams.admin.local_changelogs import LocalChangelogs
from headrace.streams.admin.local_changelogs import lines as _changelog_lines
from headrace.streams.admin.offsets import (
    GroupOffsets,
    InputOffsets,
    MovePlan,
    Wanted,
    carry_out_skip,
    lines,
    listing,
    plan_skip,
    read_offsets,
)
from headrace.streams.admin.overview import unmade_of
from headrace.streams.admin.reset import Reset, ResetPlan, refuse_backfill, refuse_members
from headrace.streams.admin.reset import lines as _reset_lines
from headrace.streams.cli.known_topics import Known, admin_of
from headrace.streams.cli.lag import require_topics
from headrace.streams.cli.options import (
    WHERE,
    Consent,
    cli_errors,
    consent_options,
    load,
    settings_option,
    state_dir_option,
    target_argument,
    where,
)
from headrace.streams.cli.tail import FIELDS, line_of
from headrace.streams.errors import ConfigError, ResetRefusedError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import OffsetTarget, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader
from headrace.topology.serdes.partials import describe_partial

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams


@click.group()
def changelog() -> None:
    """Restore lost changelogs."""


@changelog.command()
@target_argument
@consent_options
@state_dir_option
@settings_option
def restore_from_local(target: str, consent: Consent, settings: dict[str, str]) -> None:
    """Write changelogs again from the rows on this host.

    For changelogs that were deleted although the group has offsets: the application refuses to
    start, because its state would start empty. The plan is printed first. The exit code is 1
    while rows of other hosts are still missing.
    """
    with cli_errors():
        app = load(target, settings)
        config = app.config
        cluster = admin_of(config)
        work = LocalChangelogs(
            config,
            app.plans,
            cluster,
            make_producer=lambda: PlainProducer(
                {**config.producer_config(None), "delivery.report.only.error": True},
                commit_offsets=lambda _: None,
                end_offsets=cluster.end_offsets,
                timeout_s=config.task_timeout_ms / 1000,
            ),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        plan = work.plan()
        click.echo("\n".join(_changelog_lines(plan)))
        if not plan.tasks or not consent.is_given(lambda: refuse_members(plan.group, plan.members)):
            return
        work.carry_out(plan)
        if plan.elsewhere:
            click.echo("Done here. The application cannot be started yet.")
            sys.exit(1)
        click.echo("Done. The application can be started.")


@click.command()
@target_argument
@click.option("--to", "aim", metavar="WHERE", callback=where, default="beginning",
              show_default=True, help=f"Position of all inputs except tables: {WHERE}")  # fmt: skip
@click.option("--topic", "inputs", multiple=True, metavar="TOPIC",
              help="Input to set, without the other streams; may be repeated.")  # fmt: skip
@click.option("--all-internal", is_flag=True,
              help="Delete internal topics that this topology lacks, too.")  # fmt: skip
@consent_options
@state_dir_option
@settings_option
def reset(
    target: str,
    aim: OffsetTarget,
    inputs: tuple[str, ...],
    all_internal: bool,
    consent: Consent,
    settings: dict[str, Any],
) -> None:
    """Reset a stopped application to a start position.

    It sets the offsets of the inputs, deletes the repartition topics and changelogs, and removes
    the state on this host. The plan is printed first.
    """
    with cli_errors():
        app = load(target, settings)
        work = Reset(
            app.config.application_id,
            app.plans,
            admin_of(app.config),
            state_dir=app.config.state_dir,
            timeout_s=app.config.task_timeout_ms / 1000,
            global_topics=[plan.topic for plan in app.global_plans],
        )

        def make_plan() -> ResetPlan:
            return work.plan(aim, inputs=inputs, all_internal=all_internal)

        def check() -> None:
            refuse_members(plan.group, plan.members)
            refuse_backfill(plan.group, plan.backfill)

        plan = make_plan()
        click.echo("\n".join(_reset_lines(plan)))
        if consent.is_given(check):
            work.carry_out(plan, make_plan)
            click.echo("Done. The application can be started.")


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option(
    "--app", "target", metavar="MODULE:APP", required=True, help="The stopped application."
)
@click.option("--show", is_flag=True, help="Print the record, too.")
@consent_options
@settings_option
def skip(
    topic: str,
    partition: int,
    offset: int,
    target: str,
    show: bool,
    consent: Consent,
    settings: dict[str, Any],
) -> None:
    """Skip a record that a stopped application cannot process.

    The error message of the application names the record. All other records are processed as
    usual, under exactly-once each once. The plan is printed first: position, timestamp and size
    of the record, the number of records in a partial aggregate, and with --show the record
    itself.
    """
    with cli_errors():
        app = load(target, settings)
        known = Known.by(app)
        with _as_refusals():
            tp = TopicPartition(known.full_name(topic), partition)
        cluster = admin_of(app.config)
        work = _inputs(app, cluster)
        reader = TopicReader(app.config.restore_config())

        def first(tp: TopicPartition, begin: int) -> Message | None:
            ends = cluster.stable_offsets([tp])
            return next(reader.read({tp: begin}, ends), None)

        def first_from(tp: TopicPartition, begin: int) -> int | None:
            message = first(tp, begin)
            return None if message is None else message.offset()

        if not consent.dry_run:
            standing = work.read()
            refuse_members(standing.group, standing.members)
        with _as_refusals():
            plan = plan_skip(work, tp, offset, first_from)
        message = first(tp, offset)
        assert message is not None, "`plan_skip` has found it"
        click.echo(f"To be skipped: {tp} offset {offset}, {_size(message)}")
        contents = _describe_partial(app, message)
        if contents is None:
            click.echo("  No operator of the application receives it.")
        else:
            click.echo(f"  It is {contents}, which are skipped with it.")
        if show:
            form = known.form(tp.topic, None, None)
            click.echo(f"  {line_of(message, form, frozenset(FIELDS))}")
        click.echo(f"Offset of the group {plan.group_offsets.group}:\n  {plan}")
        found = plan.group_offsets
        if consent.is_given(lambda: refuse_members(found.group, found.members)):
            carry_out_skip(work, plan, plan_skip(work, tp, offset, first_from))
            reader.close()
            click.echo("Done. The application can be started.")


def _describe_partial(app: KafkaStreams, message: Message) -> str | None:
    """Describe a partial aggregate; None for a single record and outside of repartition topics."""
    own = {topic.name for plan in app.plans for topic in plan.topics.repartition_sources}
    headers: Any = message.headers()
    return describe_partial(headers, message.value()) if message.topic() in own else None


@contextmanager
def _as_refusals() -> Iterator[None]:
    """Raise each error about the record's position as `ResetRefusedError`: a single exit code."""
    try:
        yield
    except (click.UsageError, ConfigError) as error:
        message = error.message if isinstance(error, click.UsageError) else str(error)
        raise ResetRefusedError(message) from error


def _size(message: Message) -> str:
    time_ms = message.timestamp()[1]
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        time = f"{time_ms} ms"
    key, value = message.key(), message.value()
    parts = [("key", key), ("value", value)]
    sizes = [f"{name} {'null' if data is None else f'{len(data)} bytes'}" for name, data in parts]
    return f"timestamp {time}, {', '.join(sizes)}"


_TOPIC = re.compile(r"([^:]+)(?::([0-9]+(?:,[0-9]+)*))?")


@click.group()
def offsets() -> None:
    """Print or set the committed offsets of an application."""


@offsets.command("list")
@target_argument
@settings_option
def list_offsets(target: str, settings: dict[str, Any]) -> None:
    """Print committed and end offsets of each input partition.

    The exit code is 4 if an input topic does not exist.
    """
    with cli_errors():
        work = _work(target, settings)
        found = work.read()
        click.echo("\n".join(listing(found)))
        offsets = [one.committed for one in found.inputs.values() if one.committed is not None]
        # Offsets committed by a worker have metadata, offsets set by a reset have none.
        has_worked = any(one.metadata for one in offsets)
        unmade = () if has_worked else unmade_of(work.plans, found.missing)
        require_topics(name for name in found.missing if name not in unmade)


def _work(target: str, settings: dict[str, Any]) -> InputOffsets:
    app = load(target, settings)
    return _inputs(app, admin_of(app.config))


def _inputs(app: KafkaStreams, cluster: GroupAdmin) -> InputOffsets:
    config = app.config
    return InputOffsets(config.application_id, app.plans, cluster, exactly_once=config.exactly_once)


def _named(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Parse topics with optional partitions; no partitions means all of them."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        parts = _TOPIC.fullmatch(text)
        if parts is None:
            raise click.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:0,1.")
        if parts[1] in found:
            raise click.BadParameter(f"{parts[1]} is named twice. Write {parts[1]}:0,1.")
        found[parts[1]] = tuple(map(int, parts[2].split(","))) if parts[2] else ()
    return found


@offsets.command("set")
@target_argument
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,...]", callback=_named,
              help="An input, or some of its partitions; may be repeated.")  # fmt: skip
@click.option("--partition", "partitions", multiple=True, type=click.IntRange(min=0), metavar="P",
              help="Partition of the single --topic; may be repeated.")  # fmt: skip
@click.option("--to", "aim", metavar="WHERE", callback=where, help=WHERE)
@click.option("--from-file", "file", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Lines topic,partition,offset, in place of --topic and --to.")  # fmt: skip
@click.option("--process-again", is_flag=True,
              help="Under exactly-once, allow records to be processed again.")  # fmt: skip
@click.option("--leave-out", is_flag=True, help="Under exactly-once, allow records to be skipped.")
@consent_options
@settings_option
def set_offsets(
    target: str,
    topics: dict[str, tuple[int, ...]],
    partitions: tuple[int, ...],
    aim: OffsetTarget | None,
    file: Path | None,
    process_again: bool,
    leave_out: bool,
    consent: Consent,
    settings: dict[str, Any],
) -> None:
    """Set offsets of a stopped application's inputs; its state is unchanged.

    The plan and its consequences are printed first. Under exactly-once, changes that count
    records twice or never are refused without the corresponding option.
    """
    if partitions:
        if len(topics) != 1 or any(topics.values()):
            raise click.UsageError("--partition requires a single --topic.")
        topics = dict.fromkeys(topics, partitions)
    complete = not (topics or aim) if file is not None else topics and aim
    if not complete:
        raise click.UsageError("--topic and --to are required, or only --from-file.")
    with cli_errors():
        wanted = None if file is None else _read(file)
        work = _work(target, settings)

        def choose(found: GroupOffsets) -> Wanted:
            if wanted is not None:
                return wanted
            assert aim is not None
            return dict.fromkeys(_partitions(found, topics), aim)

        plan = work.plan(choose)
        click.echo("\n".join(lines(plan)))
        if not consent.is_given(lambda: _refuse(plan, again=process_again, left_out=leave_out)):
            return
        shown = {move.input.tp: OffsetTarget("offset", move.target) for move in plan.moves}
        work.carry_out(plan, lambda: work.plan(lambda _: shown))
        click.echo(f"Done. {_next_step(plan)}")


def _next_step(plan: MovePlan) -> str:
    names = ", ".join(map(str, plan.left_without))
    if not names:
        return "The application can be started."
    if plan.group_offsets.exactly_once:
        return f"A start is refused until {names} have offsets, too."
    return f"A start reads {names} from the position of auto.offset.reset."


def _refuse(plan: MovePlan, *, again: bool, left_out: bool) -> None:
    refuse_members(plan.group_offsets.group, plan.group_offsets.members)
    plan.group_offsets.refuse_changes()
    plan.require_consent(again=again, left_out=left_out)


def _partitions(found: GroupOffsets, topics: dict[str, tuple[int, ...]]) -> list[TopicPartition]:
    return [tp for topic, some in topics.items() for tp in found.chosen(topic, some)]


def _read(file: Path) -> Wanted:
    try:
        return read_offsets(file.read_text().splitlines())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
