"""The group of commands `headrace topics`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import click
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from headrace.streams.cli.known_topics import (
    Known,
    TopicSerdes,
    app_option,
    counts_of,
    serde_options,
)
from headrace.streams.cli.options import cli_errors, columns, json_option, settings_option, show
from headrace.streams.cli.record_lines import (
    STANDARD_INPUT,
    LineError,
    opened,
    read_records,
)
from headrace.streams.cli.resend import resend
from headrace.streams.cli.tail import tail
from headrace.streams.errors import (
    FatalClientError,
    MissingTopicError,
    RecordTooLargeError,
    StreamsError,
)
from headrace.streams.kafka.clients import BrokerState, new_admin, result_within
from headrace.streams.kafka.denials import DENIED, denial
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer

# The commands `headrace topics create` and `headrace topics set`.


# The package does not export these classes explicitly, which a strict type check requires.
_kafka: Any = confluent_kafka.admin

_TIMEOUT_S = 30.0
_FIND_TIMEOUT_S = 10.0
_APPEAR_S = 5.0
_LOOK_AGAIN_S = 0.05
_COMPACTED = {"cleanup.policy": "compact"}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@app_option
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Number of partitions.  [default: 1]"
)
@click.option("--any-count", is_flag=True, help="Accept topics with another partition count.")
@settings_option
def create(
    names: tuple[str, ...],
    target: str | None,
    partitions: int | None,
    any_count: bool,
    settings: dict[str, Any],
) -> None:
    """Create the topics that do not exist.

    With --app and without NAME, it creates the inputs and outputs of the application and its
    dead-letter topic. Topics that are read only as tables get cleanup.policy=compact, so that no
    row is lost after the retention time.
    """
    with cli_errors():
        known = Known.of(target, settings)
        if not names:
            names = _of_application(known)
        if not names:
            raise click.UsageError("NAME or --app is required.")
        _create(names, partitions, known.reach(), any_count=any_count, tables=known.tables)


def _of_application(known: Known) -> tuple[str, ...]:
    return tuple(name for name, use in known.own.items() if use != "keeps")


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not CONFIG=VALUE.")
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
    """Set configs of a topic, such as retention.ms=-1."""
    with cli_errors():
        _set(name, configs, Known.of(None, settings).reach())


def _set(name: str, configs: dict[str, str], config: dict[str, Any]) -> None:
    kind = _kafka.AlterConfigOpType.SET
    entries = [_kafka.ConfigEntry(n, v, incremental_operation=kind) for n, v in configs.items()]
    change = _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name, incremental_configs=entries)
    client = new_admin(config, BrokerState())
    try:
        result_within(client.incremental_alter_configs([change])[change], _TIMEOUT_S)
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
    client = new_admin(config, BrokerState())
    present = _partition_counts(client)
    existing = {name: present[name] for name in names if name in present}
    other = [f"{name} has {count}" for name, count in existing.items() if count != partitions]
    if other and partitions is not None and not any_count:
        raise click.ClickException(
            f"topics exist with another partition count than {partitions} ({', '.join(other)}). "
            "Remove --partitions to use them, or choose another name."
        )
    count = partitions or 1
    missing = [name for name in dict.fromkeys(names) if name not in existing]
    wanted = [
        NewTopic(name, num_partitions=count, config=_COMPACTED if name in tables else {})
        for name in missing
    ]
    until_s = time.monotonic() + _TIMEOUT_S
    for name, creation in (client.create_topics(wanted) if wanted else {}).items():
        try:
            result_within(creation, until_s - time.monotonic())
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if cause.code() in DENIED:
                raise denial(cause, config, topic=name, right="Create") from error
            raise click.ClickException(f"cannot create {name}: {cause.str()}") from error
    _await(client, missing)
    notes = dict.fromkeys({*missing} & tables, ", compacted, as it is read as a table")
    notes |= _notes_on_tables(existing.keys() & tables, config)
    for name in names:
        word, has = ("Exists", existing[name]) if name in existing else ("Created", count)
        more = notes.get(name, "")
        click.echo(f"{word}: {name} ({has} partition{'s' if has > 1 else ''}{more})")


def _notes_on_tables(names: AbstractSet[str], config: dict[str, Any]) -> dict[str, str]:
    """Return a note for each existing topic that is read as a table and not compacted."""
    if not names:
        return {}
    descriptions = GroupAdmin(config, timeout_s=_TIMEOUT_S).describe(names)
    return {
        name: ", not compacted, though it is read as a table: headrace topics set "
        f"{name} cleanup.policy=compact"
        for name, found in descriptions.items()
        if found.cleanup_policy is not None and "compact" not in found.cleanup_policy
    }


def _await(client: Any, names: list[str]) -> None:
    """Wait briefly for new topics: brokers learn of them after the controller has created them.

    A user without the right to describe a topic never sees it.
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


_KAFKA_S = "__"


@click.command("list")
@app_option
@click.option("--all", "every", is_flag=True, help="Include Kafka's internal topics.")
@json_option
@settings_option
def list_topics(target: str | None, every: bool, as_json: bool, settings: dict[str, Any]) -> None:
    """List the topics of a cluster or an application.

    The number of records is a number of offsets, and includes transaction markers.
    """
    with cli_errors():
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
            # Deleted since their partitions were counted; each round removes at least one topic.
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
    tps = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
    begins = admin.start_offsets(tps) if tps else {}
    ends = admin.stable_offsets(tps) if tps else {}
    records = dict.fromkeys(counts, 0)
    for tp in tps:
        records[tp.topic] += ends[tp] - begins[tp]
    return records


@click.command()
@click.argument("topic")
@app_option
@json_option
@settings_option
def describe(topic: str, target: str | None, as_json: bool, settings: dict[str, Any]) -> None:
    """Print the partitions and configs of a topic.

    With --app, internal topics may be named by store or operator, and the serdes are printed.
    """
    with cli_errors():
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
    tps = [TopicPartition(full, one.partition) for one in layout]
    begins, ends = admin.start_offsets(tps), admin.stable_offsets(tps)
    found: dict[str, Any] = {"topic": full}
    if known.names is not None:
        form = known.form(full, None, None)
        found |= {"use": known.own[full], "keys": form.key.name, "values": form.value.name}
    found |= dict(admin.describe([full])[full].config)
    found["partitions"] = [
        {
            "partition": one.partition,
            "begin": begins[tp],
            "end": ends[tp],
            "leader": one.leader,
            "replicas": list(one.replicas),
            "in_sync": list(one.in_sync),
        }
        for tp, one in zip(tps, layout, strict=True)
    ]
    return found


Producer = PlainProducer | TransactionalProducer
_TRANSACTION_MS = 600_000


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@app_option
@click.option("--transaction", is_flag=True, help="Write all records in a single transaction.")
@serde_options
@settings_option
def produce(
    topic: str,
    files: tuple[str, ...],
    target: str | None,
    transaction: bool,
    key: str | None,
    value: str | None,
    settings: dict[str, Any],
) -> None:
    """Write the lines of files to a topic; - or no FILE is standard input.

    A line is a value in JSON (or the text itself, if the topic contains text), or a whole record:
    {"key": "a", "value": {"price": 5}, "timestamp": 1700000000000}, as `topics tail` prints it.
    With --app, keys and values are written with the application's serdes. Keys are assigned to
    partitions as by Kafka's own producers.
    """
    with cli_errors():
        known = Known.of(target, settings)
        full = known.full_name(topic)
        if known.is_internal(full):
            raise click.UsageError(
                f"only {known.config.application_id} may write its internal topic {full}."
            )
        form = known.form(full, key, value)
        admin = known.admin()
        count = counts_of(admin, [full])[full]
        with _producer(known, admin, transaction=transaction) as producer:
            written = _RecordWriter(producer, form, count)
            try:
                for file in files or (STANDARD_INPUT,):
                    with opened(file) as lines:
                        written.write(lines, "standard input" if file == "-" else file)
                producer.commit()
            except StreamsError:
                _report_written(producer, written.count, full, transaction=transaction)
                raise
    click.echo(f"Written: {full} ({written.count} record{'' if written.count == 1 else 's'})")


def _report_written(producer: Producer, count: int, topic: str, *, transaction: bool) -> None:
    if transaction:
        producer.abort()
        click.echo(f"Nothing was written to {topic}: the transaction was aborted.", err=True)
    else:
        producer.flush()
        click.echo(f"Written to {topic} before that: {count} records.", err=True)


class _RecordWriter:
    """Writer of lines as records, with a count."""

    def __init__(self, producer: Producer, form: TopicSerdes, partitions: int) -> None:
        self._producer = producer
        self._form = form
        self._partitions = partitions
        self.count = 0

    def write(self, lines: Iterable[str], file: str) -> None:
        form = self._form
        for record in read_records(lines, file, key=form.key, value=form.value):
            if record.partition is not None and record.partition >= self._partitions:
                reason = f"{form.topic} has {self._partitions} partitions, not {record.partition}"
                raise LineError(file, record.line, reason)
            try:
                self._producer.send(
                    form.topic,
                    record.value,
                    record.key,
                    -1 if record.partition is None else record.partition,
                    time.time_ns() // 1_000_000 if record.timestamp is None else record.timestamp,
                    list(record.headers) or None,
                )
            except RecordTooLargeError as error:
                raise LineError(file, record.line, f"is too large: {error}") from error
            self._producer.apply_backpressure(1.0)
            self.count += 1


@contextmanager
def _producer(known: Known, admin: GroupAdmin, *, transaction: bool) -> Iterator[Producer]:
    timeout_s = known.config.task_timeout_ms / 1000
    made: Producer
    if transaction:
        identity = f"{known.config.application_id}-produce-{uuid.uuid4().hex}"
        config: Mapping[str, Any] = {
            **known.config.producer_config(identity),
            "transaction.timeout.ms": min(_TRANSACTION_MS, admin.transaction_timeout_max_ms()),
            "delivery.report.only.error": False,
        }
        made = TransactionalProducer(config, timeout_s=timeout_s)
        made.init()
        made.begin()
    else:
        config = {**known.config.producer_config(None), "delivery.report.only.error": True}
        made = PlainProducer(
            config,
            commit_offsets=lambda _: None,
            end_offsets=admin.end_offsets,
            timeout_s=timeout_s,
        )
    try:
        yield made
    finally:
        made.close()


@click.group()
def topics() -> None:
    """Create, inspect and write topics.

    --app uses the topics, serdes and settings of an application.
    """


for _command in (create, set_configs, describe, list_topics, produce, resend, tail):
    topics.add_command(_command)
