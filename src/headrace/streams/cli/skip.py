"""The command `headrace skip`: past a record that an application cannot process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Message

from headrace.streams.cli.options import confirm, load, said_errors, settings_option
from headrace.streams.cli.topics.known_topics import Known
from headrace.streams.cli.topics.tail import FIELDS, line_of
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.broker_contact import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.topic_reader import TopicReader
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.start_errors import ResetRefusedError
from headrace.streams.upgrade.offsets import InputOffsets
from headrace.streams.upgrade.reset import refuse_members
from headrace.streams.upgrade.skip import carry_out, plan_skip
from headrace.topology.serdes.partials import said_of_partial

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option(
    "--app", "target", metavar="MODULE:APP", required=True, help="The application that stopped."
)
@click.option("--show", is_flag=True, help="Print the record itself, too.")
@click.option("--dry-run", is_flag=True, help="Say what would be left out, and end.")
@click.option("--yes", is_flag=True, help="Do it without a question.")
@settings_option
def skip(
    topic: str,
    partition: int,
    offset: int,
    target: str,
    show: bool,
    dry_run: bool,
    yes: bool,
    settings: dict[str, Any],
) -> None:
    """Leave out a record that a stopped application cannot process.

    The message that the application stopped with says which. All other records are processed as
    they would be without it, under exactly-once each of them once. What is left out is always
    printed first: its place, its time and its size, how many records it stands for where it is a
    partial result, and with --show what is in it.
    """
    with said_errors():
        app = load(target, settings)
        config, known = app.config, Known.by(app)
        with _refused_alike():
            place = TopicPartition(known.full_name(topic), partition)
        reach(config.admin_config())
        cluster = GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
        work = InputOffsets(
            config.application_id, app.plans, cluster, exactly_once=config.exactly_once
        )
        reader = TopicReader(config.restore_config())

        def first(place: TopicPartition, begin: int) -> Message | None:
            ends = cluster.stable_offsets([place])
            return next(reader.read({place: begin}, ends), None)

        def first_from(place: TopicPartition, begin: int) -> int | None:
            message = first(place, begin)
            return None if message is None else message.offset()

        if not dry_run:
            standing = work.look()
            refuse_members(standing.group, standing.members)
        with _refused_alike():
            plan = plan_skip(work, place, offset, first_from)
        message = first(place, offset)
        assert message is not None, "`plan_skip` has found it"
        click.echo(f"To be left out: {place} offset {offset}, {_size(message)}")
        said = _said_of_partial(app, message)
        if said is None:
            click.echo("  No step of the application gets it, whichever of them has failed at it.")
        else:
            click.echo(f"  It is {said}: with it they are left out.")
        if show:
            form = known.form(place.topic, None, None)
            click.echo(f"  {line_of(message, form, frozenset(FIELDS))}")
        click.echo(f"Offset of the group {plan.found.group}:\n  {plan}")
        if dry_run:
            click.echo("Nothing was set (--dry-run).")
            return
        refuse_members(plan.found.group, plan.found.members)
        if not yes:
            confirm()
        carry_out(work, plan, plan_skip(work, place, offset, first_from))
        reader.close()
        click.echo("Done. The application can be started.")


def _said_of_partial(app: KafkaStreams, message: Message) -> str | None:
    """What stands for several records goes through topics that the application writes itself."""
    own = {topic.name for plan in app.plans for topic in plan.topics.repartition_sources}
    headers: Any = message.headers()
    return said_of_partial(headers, message.value()) if message.topic() in own else None


@contextmanager
def _refused_alike() -> Iterator[None]:
    """Whatever of a record's place is wrong has one exit code, for scripts."""
    try:
        yield
    except (click.UsageError, ConfigError) as error:
        said = error.message if isinstance(error, click.UsageError) else str(error)
        raise ResetRefusedError(said) from error


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
