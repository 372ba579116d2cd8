"""The command `headrace topics produce`: lines of files or of standard input become records."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import click

from headrace.streams.cli.options import said_errors, settings_option
from headrace.streams.cli.topics.known_topics import (
    Form,
    Known,
    app_option,
    counts_of,
    serde_options,
)
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.lines.record_lines import LineError, read_records, text_of
from headrace.streams.worker_errors import RecordTooLargeError

STANDARD_INPUT = "-"
Producer = PlainProducer | TransactionalProducer
_TRANSACTION_MS = 600_000


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@app_option
@click.option(
    "--transaction", is_flag=True, help="In one transaction: all of it is seen at once, or nothing."
)
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

    A line is a value in JSON (or the text itself, where the topic holds text), or a whole record:
    {"key": "a", "value": {"price": 5}, "timestamp": 1700000000000}, as `topics tail` prints it.
    With --app, keys and values are written with the application's serdes. Keys go to the partitions
    that Kafka's own producers choose.
    """
    with said_errors():
        known = Known.of(target, settings)
        full = known.full_name(topic)
        if known.is_internal(full):
            raise click.UsageError(
                f"{full} is {known.config.application_id}'s own, which nobody else may write"
            )
        form = known.form(full, key, value)
        admin = known.admin()
        count = counts_of(admin, [full])[full]
        with _producer(known, admin, transaction=transaction) as producer:
            written = _Writing(producer, form, count)
            try:
                for file in files or (STANDARD_INPUT,):
                    with _opened(file) as lines:
                        written.write(lines, "standard input" if file == "-" else file)
                producer.commit()
            except StreamsError:
                _say_what_stays(producer, written.count, full, transaction=transaction)
                raise
    click.echo(f"Written: {full} ({written.count} record{'' if written.count == 1 else 's'})")


def _say_what_stays(producer: Producer, count: int, topic: str, *, transaction: bool) -> None:
    if transaction:
        producer.abort()
        click.echo(f"Nothing was written to {topic}: the transaction was aborted.", err=True)
    else:
        producer.settle()
        click.echo(f"Written to {topic} before that: {count} records.", err=True)


class _Writing:
    """Writes lines, and counts them."""

    def __init__(self, producer: Producer, form: Form, partitions: int) -> None:
        self._producer = producer
        self._form = form
        self._partitions = partitions
        self.count = 0

    def write(self, lines: Iterable[str], file: str) -> None:
        """Write all lines of a file.

        Raises:
            LineError: one is no record of the topic.
        """
        form = self._form
        for record in read_records(lines, file, key=form.key, value=form.value):
            if record.partition is not None and record.partition >= self._partitions:
                reason = (
                    f"{form.topic} has {self._partitions} partitions, and no {record.partition}"
                )
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
            self._producer.pressure(1.0)
            self.count += 1


@contextmanager
def _opened(file: str) -> Iterator[IO[str]]:
    if file == STANDARD_INPUT:
        yield text_of(sys.stdin.buffer)
        return
    with ExitStack() as stack:
        try:
            lines = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
        yield text_of(lines)


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
