"""The command `headrace topics resend`: dead letters become records of their topic again."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice
from typing import Any

import click
from confluent_kafka import Message

from headrace.streams.cli.known_topics import Known, counts_of
from headrace.streams.cli.options import cli_errors, settings_option
from headrace.streams.config.dead_letter_headers import HEADER, NODE_HEADER
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.clients import BrokerState, new_consumer
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader, record_tp
from headrace.streams.kafka.transactional_producer import TransactionalProducer

_BATCH = 1_000


@click.command()
@click.argument("letters")
@click.argument("topic")
@settings_option
def resend(letters: str, topic: str, settings: dict[str, Any]) -> None:
    """Send the dead letters of a topic back to it, each once.

    LETTERS is the dead-letter topic, and TOPIC is the topic of the records that failed: a source
    topic, or a repartition topic by its full name. Each record returns to its partition with its
    key, value, timestamp and own headers.

    The command ends at the letters that exist when it starts, so records that fail again are not
    sent in the same run. Offsets of the group LETTERS-TOPIC-resend are committed in the transaction
    of the records: the next run sends later letters only.

    It requires the permissions Read on LETTERS and on that group, and Write on TOPIC and on the
    transactional id of the same name.
    """
    with cli_errors():
        known = Known.of(None, settings)
        admin = known.admin()
        counts = counts_of(admin, [letters, topic])
        if letters == topic:
            raise click.UsageError("TOPIC must be the topic of the failed records, not LETTERS.")
        sent, left = _resend(known, admin, letters, topic, counts)
    click.echo(f"Sent: {topic} ({sent} letter{'' if sent == 1 else 's'})")
    for other, count in left.items():
        click.echo(f"Not sent: {count} of {other or 'no topic'}")


def _resend(
    known: Known, admin: GroupAdmin, letters: str, topic: str, counts: dict[str, int]
) -> tuple[int, Counter[str]]:
    """Return the number of sent letters, and the number of other letters by topic."""
    config, group = known.config, f"{letters}-{topic}-resend"
    identity = {**config.producer_config(group), "delivery.report.only.error": False}
    sent, left = 0, Counter[str]()
    with (
        closing(TransactionalProducer(identity, timeout_s=config.task_timeout_ms / 1000)) as out,
        # The client finds the coordinator of its group, so it must not be another one.
        closing(TopicReader({**config.restore_config(), "group.id": group})) as reader,
        closing(
            new_consumer({**config.admin_config(), "group.id": group}, BrokerState())
        ) as member,
    ):
        out.init()  # fences a run that is still active
        tps = [TopicPartition(letters, number) for number in range(counts[letters])]
        begins, ends = admin.start_offsets(tps), admin.stable_offsets(tps)
        for tp, stored in admin.committed_at(group, tps, decided=True).items():
            begins[tp] = min(max(stored.offset, begins[tp]), ends[tp])
        letters_left = reader.read(begins, ends)
        while batch := list(islice(letters_left, _BATCH)):
            out.begin()
            try:
                for message in batch:
                    source, partition = _origin(message)
                    if source == topic:
                        _send(out, message, topic, partition if partition < counts[topic] else -1)
                        sent += 1
                    else:
                        left[source] += 1
                read = {record_tp(one): CommittedOffset((one.offset() or 0) + 1) for one in batch}
                out.send_offsets(read, member.consumer_group_metadata())
                out.commit()
            except StreamsError:
                out.abort()
                raise
    return sent, left


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    found: Any = message.headers() or ()
    return [(name, data.encode() if isinstance(data, str) else data) for name, data in found]


def _origin(message: Message) -> tuple[str, int]:
    """Return topic and partition of the failed record; "" if the letter has none."""
    headers = dict(_headers(message))
    topic, partition = (headers.get(HEADER + name) or b"" for name in ("topic", "partition"))
    return topic.decode(errors="replace"), int(partition) if partition.isdigit() else -1


def _send(producer: TransactionalProducer, message: Message, topic: str, partition: int) -> None:
    own = [h for h in _headers(message) if not h[0].startswith(HEADER) and h[0] != NODE_HEADER]
    time_ms = max(message.timestamp()[1], 0)
    producer.send(topic, message.value(), message.key(), partition, time_ms, own or None)
