"""The commands `headrace topics list` and `headrace topics describe`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from headrace.streams.cli.options import said_errors, settings_option
from headrace.streams.cli.tables import columns, json_option, show
from headrace.streams.cli.topics.known_topics import Known, app_option, counts_of
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.seams.clients import TopicPartition

_KAFKA_S = "__"


@click.command("list")
@app_option
@click.option("--all", "every", is_flag=True, help="Kafka's own topics, too.")
@json_option
@settings_option
def list_topics(target: str | None, every: bool, as_json: bool, settings: dict[str, Any]) -> None:
    """List the topics of the cluster, or those of an application.

    The column of records counts offsets that are there; markers of transactions count too.
    """
    with said_errors():
        known = Known.of(target, settings)
        admin = known.admin()
        names = sorted(
            known.own or [n for n in admin.names() if every or not n.startswith(_KAFKA_S)]
        )
        documents = _listed(known, admin, names)
        if as_json:
            click.echo(json.dumps(documents))
            return
        numbers = ("partitions", "records")
        table = columns("topic", *numbers, *(["use"] if known.own else []), numbers=numbers)
        for one in documents:
            is_there = one["partitions"] is not None
            counts = [f"{one[n]:,}" if is_there else "-" for n in numbers]
            use = [one["use"] if is_there else f"{one['use']}; missing"] if known.own else []
            table.add_row(one["topic"], *counts, *use)
        show(table)


def _listed(known: Known, admin: GroupAdmin, names: list[str]) -> list[dict[str, Any]]:
    counts = dict(admin.partition_counts(names))
    while True:
        try:
            records = _records(admin, counts)
            break
        except MissingTopicError as error:
            # They were deleted since partitions were counted; each round leaves out one at least.
            left = [name for name in counts if name not in error.topics]
            if len(left) == len(counts):
                raise
            counts = dict(admin.partition_counts(left))
    if not known.own:
        names = [name for name in names if name in counts]
    return [
        {
            "topic": name,
            "partitions": counts.get(name),
            "records": records.get(name),
            **({"use": known.own[name]} if known.own else {}),
        }
        for name in names
    ]


def _records(admin: GroupAdmin, counts: Mapping[str, int]) -> dict[str, int]:
    places = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
    begins = admin.start_offsets(places) if places else {}
    ends = admin.stable_offsets(places) if places else {}
    records = dict.fromkeys(counts, 0)
    for place in places:
        records[place.topic] += ends[place] - begins[place]
    return records


@click.command()
@click.argument("topic")
@app_option
@json_option
@settings_option
def describe(topic: str, target: str | None, as_json: bool, settings: dict[str, Any]) -> None:
    """Show the partitions of a topic, and how it is kept.

    With --app, internal topics go by the names of their stores and steps too, and what keys and
    values are is shown.
    """
    with said_errors():
        known = Known.of(target, settings)
        full = known.full_name(topic)
        admin = known.admin()
        counts_of(admin, [full])
        document = _described(known, admin, full)
        if as_json:
            click.echo(json.dumps(document))
            return
        partitions = document.pop("partitions")
        for name, text in document.items():
            click.echo(f"{name}: {text}")
        numbers = ("partition", "begin", "end", "leader")
        table = columns(*numbers, "replicas", "in sync", numbers=numbers)
        for one in partitions:
            lists = (" ".join(map(str, one[name])) for name in ("replicas", "in_sync"))
            table.add_row(*(str(one[name]) for name in numbers), *lists)
        show(table)


def _described(known: Known, admin: GroupAdmin, full: str) -> dict[str, Any]:
    layout = admin.layout(full)
    places = [TopicPartition(full, one.partition) for one in layout]
    begins, ends = admin.start_offsets(places), admin.stable_offsets(places)
    found: dict[str, Any] = {"topic": full}
    if known.names is not None:
        form = known.form(full, None, None)
        found |= {"use": known.own[full], "keys": form.key.name, "values": form.value.name}
    found |= dict(admin.describe([full])[full].config)
    found["partitions"] = [
        {
            "partition": one.partition,
            "begin": begins[place],
            "end": ends[place],
            "leader": one.leader,
            "replicas": list(one.replicas),
            "in_sync": list(one.in_sync),
        }
        for place, one in zip(places, layout, strict=True)
    ]
    return found
