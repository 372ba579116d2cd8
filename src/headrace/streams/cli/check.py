"""The command `headrace check`: problems that an upgrade of an application would cause."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.options import (
    cli_errors,
    load,
    settings_option,
    target_argument,
)
from headrace.streams.errors import (
    OTHER_APPLICATION,
    MisconfiguredTopicError,
    MissingTopicError,
    TopologyChangedError,
)
from headrace.streams.plan.flow import upstream_of
from headrace.streams.plan.identity import ChangelogLostError
from headrace.streams.plan.key_sample import mismatches_of, unnamed_keys_of
from headrace.streams.plan.topic_plan import plan_internal_topics, topic_names
from headrace.streams.plan.topics import describe_as
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.topology.checks.unnamed import Unnamed, calls_alone, unnamed_steps

if TYPE_CHECKING:
    from headrace.streams.admin.start_check import StartCheck
    from headrace.streams.app import KafkaStreams
    from headrace.streams.kafka.group_admin import GroupAdmin

_WHY = """\
Such a name contains a number that counts the operators of the program. It changes if an operator is
added or removed upstream: then the state starts empty, and the rest of the repartition topic is not
read. Name all stores and repartition topics. A new name starts empty, too; to keep deployed state,
use the names that are printed here."""

_FASTEST = (
    "stream.time is fastest, so windows and joins after it may drop records of a backlog as late. "
    "Set stream.time=slowest, or grace= to the longest backlog."
)


@click.command()
@target_argument
@click.option("--strict", is_flag=True, help="Exit with code 1 if a name is missing.")
@click.option("--deployed", is_flag=True, help="Compare with the deployed topology.")
@settings_option
def check(target: str, strict: bool, deployed: bool, settings: dict[str, Any]) -> None:
    """Find problems of an upgrade in advance.

    It lists the stores and repartition topics without a name, keys that are written with a serde
    that is not set although the serde upstream is, keys that may not match the keys that they are
    joined with, and, as notes, operators that call external services one by one.

    With --deployed, it prints the effect of the topology on the state and the topics of the
    version that started last. The exit code is 1 if the topology would be refused. Nothing is
    changed.
    """
    with cli_errors():
        app = load(target, settings, needs_cluster=deployed)
        if deployed:
            sys.exit(_compare(app))
    steps = list(unnamed_steps(plan.program.sub_topology for plan in app.plans))
    keys = list(unnamed_keys_of(app.topology, app.config))
    for found in (*mismatches_of(app.topology, app.config), *keys):
        click.echo(f"{found}\n")
    for message in calls_alone(plan.program.sub_topology for plan in app.plans):
        click.echo(f"Note: {message}\n")
    if app.config.stream_time == "fastest":
        for topic in upstream_of(app.plans).writers:
            click.echo(f"Note: {topic}: {_FASTEST}\n")
    _report_unnamed(steps)
    if strict and (steps or keys):
        sys.exit(1)


def _report_unnamed(steps: list[Unnamed]) -> None:
    if not steps:
        click.echo("All stores and repartition topics are named.")
        return
    for unnamed in steps:
        click.echo(str(unnamed))
    click.echo(f"\n{_WHY}")


def _compare(app: KafkaStreams) -> int:
    """Print the differences from the deployed topology; return the exit code."""
    from headrace.state.log import get_logger
    from headrace.streams.admin.start_check import (
        CommittedRecords,
        StartCheck,
        has_stored_nothing,
    )
    from headrace.streams.cli.known_topics import admin_of
    from headrace.streams.kafka.clocks import SystemClock
    from headrace.streams.plan.deployed import DeployedTopology
    from headrace.streams.plan.deployment import change_code
    from headrace.streams.plan.deployment_changes import changes, is_other_application
    from headrace.streams.testing.memory_worker import EventLog
    from headrace.streams.worker.connections import LIVE

    config, clock = app.config, SystemClock()
    admin = admin_of(config)
    deployed = DeployedTopology(config, app.plans, admin, get_logger())
    before = deployed.read()
    found = []
    if before is not None:
        found = changes(before, deployed.present, application_id=config.application_id)
    records = CommittedRecords(
        partial(LIVE.make_reader, config, clock),
        clock=clock,
        timeout_s=config.task_timeout_ms / 1000,
    )
    log = EventLog()
    if before is not None and any(change.refused for change in found):
        group = config.application_id
        if has_stored_nothing(group, before, admin, admin, records, log):
            found = [replace(change, refused=False) for change in found]
    refused = [str(change) for change in found if change.refused]
    start_check = StartCheck(config, app.plans, admin, records, before, log, described=admin)
    count = start_check.inputs_of_kafka_streams(admin)
    if count:
        click.echo(_takeover(admin, app, count))
        refused += _members_of_kafka_streams(admin, config.application_id)
    elif before is None:
        click.echo(
            f"The cluster has no description of {config.application_id}. The application has not "
            "run, was reset or was stopped for longer than the brokers keep offsets, or its first "
            "input topic was deleted."
        )
    refused += _wrong_topics(admin, app, start_check)
    for text in refused:
        click.echo(f"Refused: {text}")
    for change in found:
        if not change.refused:
            click.echo(f"Note: {change}")
    for event in log.events:
        click.echo(f"Note: {_note(**event)}")
    if before is not None and any(change.refused for change in found):
        code = change_code(before, deployed.present)
        if is_other_application(before, deployed.present):
            click.echo(f"{OTHER_APPLICATION}.")
        click.echo(f"To accept the loss and start: topology.change.accept={code}")
    if not refused:
        but = ", but see the notes" if log.events else ""
        click.echo(f"The application can be started{but}.")
        if before is not None:
            click.echo("The code of functions is not compared.")
    return 1 if refused else 0


def _takeover(admin: GroupAdmin, app: KafkaStreams, inputs: int) -> str:
    """Describe the offsets and topics of Kafka Streams that this topology continues."""
    changelogs = {t: store for plan in app.plans for store, t in plan.changelogs.items()}
    repartitions = {t: t for plan in app.plans for t in plan.topics.repartition_sinks}
    names = admin.names()
    application = app.config.application_id
    lines = [f"Kafka Streams ran {application} and committed offsets of {inputs} input partitions."]
    for kind, topics in (("Stores", changelogs), ("Repartition topics", repartitions)):
        found = sorted(name for topic, name in topics.items() if topic in names)
        lost = sorted(name for topic, name in topics.items() if topic not in names)
        if found:
            lines.append(f"{kind} with its topics: {', '.join(found)}.")
        if lost:
            lines.append(f"{kind} without its topics: {', '.join(lost)}.")
    lines.append("Serdes are not compared: the topics of Kafka Streams do not name them.")
    return "\n".join(lines)


def _members_of_kafka_streams(admin: GroupAdmin, group: str) -> list[str]:
    members = ", ".join(map(str, admin.members(group)))
    what = f"Kafka Streams committed the offsets of the group {group}, which has the active members"
    return [f"{what} {members}. Close all instances of the Java application"] if members else []


def _note(event: str, level: str, reason: str = "", **fields: Any) -> str:
    """Format a log event of a start."""
    del level
    others = ", ".join(f"{name}={value}" for name, value in fields.items())
    return f"{event}: {reason} ({others})".replace(":  (", " (")


def _wrong_topics(admin: GroupAdmin, app: KafkaStreams, start_check: StartCheck) -> list[str]:
    """Return the errors that a start would raise about topics, such as a wrong partition count."""
    subs = [*(p.topics for p in app.plans), *(p.topics for p in app.global_plans)]
    sinks = {name for sub in subs for name in sub.sinks}
    try:
        descriptions = describe_as(admin, topic_names(subs), written=sinks)
        plan = plan_internal_topics(subs, descriptions, names=admin.names())
        start_check.begin(admin, plan, descriptions)
        start_check.require_same(admin, descriptions)
    except (
        MissingTopicError,
        MisconfiguredTopicError,
        ChangelogLostError,
        StateWithoutOffsetsError,
        TopologyChangedError,
    ) as error:
        return [str(error)]
    return []
