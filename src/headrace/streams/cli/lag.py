"""The commands `headrace lag` and `headrace tasks`: the progress of an application."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from headrace.streams.admin.overview import (
    InputLag,
    Overview,
    TaskView,
    by_topic,
    inspect,
    unread_partials,
)
from headrace.streams.cli.options import (
    cli_errors,
    columns,
    json_option,
    load,
    settings_option,
    show,
    target_argument,
)
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.connectivity import reach
from headrace.streams.kafka.group_admin import RetryingAdmin

if TYPE_CHECKING:
    from headrace.streams.kafka.protocols import Member


def missing_lines(overview: Overview) -> Iterator[str]:
    for name in overview.missing:
        yet = " yet; the next start creates it" if name in overview.unmade else ""
        yield f"Topic {name} does not exist{yet}."


def require_topics(lost: Iterable[str]) -> None:
    """Raise if topics were missing; to be called after the rest of the output."""
    names = tuple(lost)
    if names:
        raise MissingTopicError(
            f"topics do not exist, so their lag is unknown ({', '.join(names)}). Check the names "
            "and bootstrap.servers.",
            topics=names,
        )


def inspector(target: str, settings: dict[str, Any]) -> Callable[[], Overview]:
    """Load an application; return a function that reads its progress from the cluster."""
    app = load(target, settings)
    config = app.config
    reach(config.admin_config())
    cluster = RetryingAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    return lambda: inspect(config.application_id, app.plans, cluster)


def head_line(overview: Overview) -> str:
    count = len(overview.group.members)
    workers = f"{count} worker{'' if count == 1 else 's'}"
    return f"{overview.application_id}: {overview.group.state}, {workers}"


def task_cells(task: TaskView) -> tuple[str, str, str, str]:
    """Return a task, the id and host of its worker, and its lag for a table."""
    member = task.member
    worker, host = ("-", "-") if member is None else (member.id, _host(member))
    return str(task.id), worker, host, f"{task.lag:,}"


@click.command()
@target_argument
@click.option("--partitions", "each", is_flag=True, help="Print each partition.")
@click.option("--above", type=click.IntRange(min=0), metavar="N",
              help="Exit with code 1 if the total lag is larger than N offsets.")  # fmt: skip
@click.option("--partial-aggregates", is_flag=True,
              help="Count unread partial aggregates; exit with code 1 if any exist.")  # fmt: skip
@json_option
@settings_option
def lag(
    target: str,
    *,
    each: bool,
    above: int | None,
    partial_aggregates: bool,
    as_json: bool,
    settings: dict[str, Any],
) -> None:
    """Print the lag of an application in each of its inputs.

    The lag is counted in offsets, from the committed to the last stable offset, and includes
    transaction markers. Repartition topics are inputs of the sub-topology downstream. The exit
    code is 4 if an input topic does not exist.

    Partial aggregates in repartition topics are read by this application only. Kafka Streams would
    count each of them as one record, so read them to the end before you go back to it.
    """
    with cli_errors():
        overview = inspector(target, settings)()
        partials = _unread_partials(target, settings, overview) if partial_aggregates else None
        if as_json:
            found = {} if partials is None else {"partial_aggregates": partials}
            click.echo(json.dumps(_lag_document(overview) | found))
        else:
            _print_head(overview)
            show(_partition_table(overview.inputs) if each else _topic_table(overview.inputs))
            rest = " of the existing topics" if overview.lost else ""
            click.echo(f"Lag{rest}: {overview.lag:,}")
            if partials is not None:
                click.echo(f"Unread partial aggregates: {partials:,}")
        require_topics(overview.lost)
        if partials or (above is not None and overview.lag > above):
            sys.exit(1)


def _unread_partials(target: str, settings: dict[str, Any], overview: Overview) -> int:
    from headrace.streams.kafka.clocks import SystemClock
    from headrace.streams.worker.connections import LIVE

    config, clock = load(target, settings).config, SystemClock()
    consumer = LIVE.make_consumer(config, config.restore_config(), clock)
    try:
        timeout_s = config.task_timeout_ms / 1000
        return unread_partials(overview.inputs, consumer, clock=clock, timeout_s=timeout_s)
    finally:
        consumer.close(leave=False)


@click.command()
@target_argument
@json_option
@settings_option
def tasks(target: str, *, as_json: bool, settings: dict[str, Any]) -> None:
    """Print the tasks of an application with worker, host and lag.

    The exit code is 4 if an input topic does not exist.
    """
    with cli_errors():
        overview = inspector(target, settings)()
        if as_json:
            click.echo(json.dumps(_tasks_document(overview)))
        else:
            _print_head(overview)
            show(_task_table(overview.tasks))
        require_topics(overview.lost)


def _print_head(overview: Overview) -> None:
    click.echo(head_line(overview))
    for line in missing_lines(overview):
        click.echo(line)
    idle = overview.without_worker()
    if idle and overview.group.members:
        click.echo(f"Tasks without a worker: {', '.join(map(str, idle))}")


def _topic_table(inputs: Iterable[InputLag]) -> Table:
    numbers = ("partitions", "lag", "largest of a partition")
    table = columns("sub-topology", "topic", *numbers, numbers=numbers)
    for one in by_topic(inputs):
        table.add_row(
            str(one.sub_topology),
            one.topic,
            str(one.partitions),
            f"{one.lag:,}",
            f"{one.largest:,}",
        )
    return table


def _partition_table(inputs: Iterable[InputLag]) -> Table:
    numbers = ("committed", "end", "lag")
    table = columns("task", "partition", *numbers, numbers=numbers)
    for one in inputs:
        committed = "-" if one.committed is None else str(one.committed)
        table.add_row(str(one.task), str(one.tp), committed, str(one.end), f"{one.lag:,}")
    return table


def _task_table(tasks: Sequence[TaskView]) -> Table:
    table = columns("task", "worker", "host", "lag", numbers=("lag",))
    for task in tasks:
        table.add_row(*task_cells(task))
    return table


def _host(member: Member) -> str:
    return member.host.removeprefix("/")


def _lag_document(overview: Overview) -> dict[str, Any]:
    return {
        **_head(overview),
        "inputs": [
            {
                "task": str(one.task),
                "topic": one.tp.topic,
                "partition": one.tp.partition,
                "internal": one.internal,
                "committed": one.committed,
                "end": one.end,
                "lag": one.lag,
            }
            for one in overview.inputs
        ],
    }


def _tasks_document(overview: Overview) -> dict[str, Any]:
    return {
        **_head(overview),
        "tasks": [
            {
                "task": str(task.id),
                "worker": None if task.member is None else task.member.id,
                "host": None if task.member is None else _host(task.member),
                "lag": task.lag,
            }
            for task in overview.tasks
        ],
    }


def _head(overview: Overview) -> dict[str, Any]:
    return {
        "application": overview.application_id,
        "state": overview.group.state,
        "workers": [member.id for member in overview.group.members],
        "missing_topics": list(overview.missing),
        # The lag of a missing topic is unknown.
        "lag": None if overview.lost else overview.lag,
    }
