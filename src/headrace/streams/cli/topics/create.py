"""The commands `headrace topics create` and `headrace topics set`."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from typing import Any

import click
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from headrace.streams.cli.options import said_errors, settings_option
from headrace.streams.cli.topics.known_topics import Known, app_option
from headrace.streams.contact.denials import DENIED, denial
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.broker_contact import Heard
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.kafka_clients import answered, new_admin

# The package offers these classes without declaring it, which a strict type check refuses.
_kafka: Any = confluent_kafka.admin

_TIMEOUT_S = 30.0
_FIND_TIMEOUT_S = 10.0
_APPEAR_S = 5.0
_LOOK_AGAIN_S = 0.05
_COMPACTED = {"cleanup.policy": "compact"}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@app_option
@click.option("--partitions", type=click.IntRange(min=1), help="How many.  [default: 1]")
@click.option(
    "--any-count", is_flag=True, help="Accept topics that exist with another number of partitions."
)
@settings_option
def create(
    names: tuple[str, ...],
    target: str | None,
    partitions: int | None,
    any_count: bool,
    settings: dict[str, Any],
) -> None:
    """Create topics; those that exist are left as they are.

    With --app and no NAME, all that the application reads and writes and does not make itself, and
    that of its dead letters. Topics that it reads as tables, and not as streams, get
    cleanup.policy=compact, so that no row is lost after the retention time.
    """
    with said_errors():
        known = Known.of(target, settings)
        if not names:
            names = _of_application(known)
        if not names:
            raise click.UsageError("give a NAME, or an application with --app")
        _create(names, partitions, known.reach(), any_count=any_count, tables=known.tables)


def _of_application(known: Known) -> tuple[str, ...]:
    return tuple(name for name, use in known.own.items() if use != "keeps")


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not CONFIG=VALUE")
        found[name] = value
    return found


@click.command("set")
@click.argument("name")
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG=VALUE...", callback=_pairs)
@settings_option
def set_configs(
    name: str,
    configs: dict[str, str],
    settings: dict[str, Any],
) -> None:
    """Set configs of a topic, such as retention.ms=-1; its others stay as they are."""
    with said_errors():
        _set(name, configs, Known.of(None, settings).reach())


def _set(name: str, configs: dict[str, str], config: dict[str, Any]) -> None:
    kind = _kafka.AlterConfigOpType.SET
    entries = [_kafka.ConfigEntry(n, v, incremental_operation=kind) for n, v in configs.items()]
    asked = _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name, incremental_configs=entries)
    client = new_admin(config, Heard())
    try:
        answered(client.incremental_alter_configs([asked])[asked], _TIMEOUT_S)
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        if cause.code() in DENIED:
            raise denial(cause, config, topic=name, right="AlterConfigs") from error
        raise click.ClickException(f"cannot set configs of {name}: {cause.str()}") from error
    click.echo(f"Set: {name} ({', '.join(f'{n}={v}' for n, v in configs.items())})")


def _create(
    names: tuple[str, ...],
    partitions: int | None,
    config: dict[str, Any],
    *,
    any_count: bool,
    tables: AbstractSet[str],
) -> None:
    client = new_admin(config, Heard())
    present = _partition_counts(client)
    kept = {name: present[name] for name in names if name in present}
    other = [f"{name} has {count}" for name, count in kept.items() if count != partitions]
    if other and partitions is not None and not any_count:
        raise click.ClickException(
            f"topics exist with another partition count than {partitions}: {', '.join(other)}; "
            "leave out --partitions to use them so, or take another name"
        )
    count = partitions or 1
    missing = [name for name in dict.fromkeys(names) if name not in kept]
    wanted = [
        NewTopic(name, num_partitions=count, config=_COMPACTED if name in tables else {})
        for name in missing
    ]
    until_s = time.monotonic() + _TIMEOUT_S
    for name, creation in (client.create_topics(wanted) if wanted else {}).items():
        try:
            answered(creation, until_s - time.monotonic())
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if cause.code() in DENIED:
                raise denial(cause, config, topic=name, right="Create") from error
            raise click.ClickException(f"cannot create {name}: {cause.str()}") from error
    _await(client, missing)
    notes = dict.fromkeys({*missing} & tables, ", compacted, as it is read as a table")
    notes |= _notes_on_tables(kept.keys() & tables, config)
    for name in names:
        word, has = ("Exists", kept[name]) if name in kept else ("Created", count)
        more = notes.get(name, "")
        click.echo(f"{word}: {name} ({has} partition{'s' if has > 1 else ''}{more})")


def _notes_on_tables(names: AbstractSet[str], config: dict[str, Any]) -> dict[str, str]:
    """Say of existing topics that their old rows are deleted, and how to keep them."""
    if not names:
        return {}
    facts = GroupAdmin(config, timeout_s=_TIMEOUT_S).describe(names)
    return {
        name: ", not compacted, though it is read as a table: headrace topics set "
        f"{name} cleanup.policy=compact"
        for name, found in facts.items()
        if found.cleanup_policy is not None and "compact" not in found.cleanup_policy
    }


def _await(client: Any, names: list[str]) -> None:
    """Wait a little for new topics: a broker hears of them after the controller has made them.

    Who has no right to see them never does.
    """
    give_up_at = time.monotonic() + _APPEAR_S
    while not _partition_counts(client).keys() >= set(names) and time.monotonic() < give_up_at:
        time.sleep(_LOOK_AGAIN_S)


def _partition_counts(client: Any) -> dict[str, int]:
    try:
        found = client.list_topics(timeout=_FIND_TIMEOUT_S).topics
    except KafkaException as error:
        raise FatalClientError(f"cannot list the topics: {error.args[0].str()}") from error
    return {name: len(topic.partitions) for name, topic in found.items()}
