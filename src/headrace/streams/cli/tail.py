"""The command `headrace topics tail`: records of topics as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

import click
from confluent_kafka import Message

from headrace.streams.cli.known_topics import (
    Known,
    TopicSerdes,
    app_option,
    counts_of,
    serde_options,
)
from headrace.streams.cli.options import WHERE, cli_errors, settings_option, where
from headrace.streams.cli.record_lines import record_line
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import OffsetTarget, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader
from headrace.topology.errors import RegistryError, SerdeError
from headrace.topology.serdes import Serde
from headrace.topology.serdes.documents import as_base64

FIELDS = ("timestamp", "partition", "offset", "headers")


def _fields(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[str]:
    names = [] if text is None else [word.strip() for word in text.split(",")]
    if names == ["all"]:
        return frozenset(FIELDS)
    unknown = [word for word in names if word not in FIELDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} must be all or in {', '.join(FIELDS)}.")
    return frozenset(names)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@app_option
@click.option("--from", "aim", metavar="WHERE", callback=where,
              help=f"Start position: {WHERE}  [default: beginning]")  # fmt: skip
@click.option(
    "--max", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option("--follow", is_flag=True, help="Continue with new records until Ctrl-C.")
@click.option("--with", "fields", metavar="FIELD,...", callback=_fields,
              help="Further fields: timestamp, partition, offset, headers, or all.")  # fmt: skip
@click.option(
    "--partition", type=click.IntRange(min=0), metavar="P", help="Single partition to read."
)
@click.option("--uncommitted", is_flag=True, help="Include open and aborted transactions.")
@serde_options
@settings_option
def tail(
    topics: tuple[str, ...],
    target: str | None,
    aim: OffsetTarget | None,
    most: int | None,
    follow: bool,
    fields: frozenset[str],
    partition: int | None,
    uncommitted: bool,
    key: str | None,
    value: str | None,
    settings: dict[str, Any],
) -> None:
    """Print the records of topics, a line of JSON each.

    With --app, keys and values are read with the application's serdes, internal topics may be
    named by store or operator, and the default topics are the outputs of the application. A key
    or value that a serde rejects is printed as {"base64": ...}, with its position and the reason.

    No group is joined and nothing is committed.
    """
    if aim is not None and aim.kind == "latest" and not follow:
        raise click.UsageError("--from end requires --follow.")
    with cli_errors():
        known = Known.of(target, settings)
        names = [known.full_name(name) for name in topics]
        if not names and known.names is not None:
            names = known.names.outputs(())
        if not names and known.names is not None:
            raise click.UsageError(f"{known.config.application_id} writes no topic. Name a TOPIC.")
        if not names:
            raise click.UsageError("TOPIC or --app is required.")
        forms = {name: known.form(name, key, value) for name in names}
        admin = known.admin()
        tps = _partitions(counts_of(admin, names), partition)
        begins = admin.offsets_for(aim or OffsetTarget(), tps)
        ends = None if follow else _ends(admin, tps, uncommitted=uncommitted)
        if follow:
            click.echo(f"Following {', '.join(names)}.", err=True)
        reader = TopicReader(known.config.restore_config(), uncommitted=uncommitted)
        with suppress(KeyboardInterrupt):
            try:
                for message in islice(reader.read(begins, ends), most):
                    form = forms[str(message.topic())]
                    click.echo(line_of(message, form, fields, names_topic=len(names) > 1))
            finally:
                reader.close()


def _partitions(counts: dict[str, int], partition: int | None) -> list[TopicPartition]:
    for name, count in counts.items():
        if partition is not None and partition >= count:
            raise click.UsageError(f"{name} has no partition {partition}, only 0 to {count - 1}.")
    numbers: dict[str, Iterable[int]] = {
        name: range(count) if partition is None else [partition] for name, count in counts.items()
    }
    return [TopicPartition(name, number) for name in numbers for number in numbers[name]]


def _ends(
    admin: GroupAdmin, tps: list[TopicPartition], *, uncommitted: bool
) -> dict[TopicPartition, int]:
    return admin.end_offsets(tps) if uncommitted else admin.stable_offsets(tps)


def line_of(
    message: Message, form: TopicSerdes, fields: frozenset[str], *, names_topic: bool = False
) -> str:
    """Format a record as a line; add partition and offset if a serde rejects it."""
    headers: Any = message.headers() or ()
    data = message.value()
    refused: list[str] = []
    shown_key = _read(message.key(), form.key, "key", refused)
    result = None
    if form.take is not None:
        with suppress(SerdeError):
            result = form.take(headers, data)[0]
    shown_value = _read(data, form.value, "value", refused) if result is None else result
    shown = fields | {"partition", "offset"} if refused else fields
    return record_line(
        shown_key,
        shown_value,
        timestamp=message.timestamp()[1] if "timestamp" in shown else None,
        partition=message.partition() if "partition" in shown else None,
        offset=message.offset() if "offset" in shown else None,
        headers=[(n, _bytes(d)) for n, d in headers] if "headers" in shown else (),
        more={"topic": form.topic} if names_topic else None,
        error="; ".join(refused) or None,
    )


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _read(data: Any, serde: Serde[Any], part: str, refused: list[str]) -> object:
    if data is None:
        return None
    try:
        return serde.deserialize(data)
    except RegistryError:
        raise  # affects each record of the topic
    except SerdeError as error:
        refused.append(f"{part}: {error}")
    except Exception as error:  # a user's serde may raise anything
        refused.append(f"{part}: {serde.name} raised {type(error).__name__}")
    return as_base64(data)
