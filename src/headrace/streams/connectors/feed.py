"""Feed of the rows of a source to a topic, each row exactly once.

    positions ─► the source's batches ─► a transaction: rows, and the positions after them
        ▲                                        │
        └──── the topic <name>-positions ◄───────┘

The positions are the last records of a compacted topic, written in the transaction of the rows. A
feed starts by fencing the previous feed of its name, which aborts its open transaction, and then
reads the positions: either rows and position are committed, or neither is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

from headrace.state.log import get_logger
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.secrets import over
from headrace.streams.connectors.source import Batch, Position, Row, Source, SourceError
from headrace.streams.errors import (
    AbortableError,
    MisconfiguredTopicError,
    MissingTopicError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordTooLargeError,
)
from headrace.streams.kafka.adaptive_batch_size import FIRST_RECORDS, AdaptiveBatchSize, adjusting
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.protocols import Clock, NewTopic, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.topology import SerdeError, serdes
from headrace.topology.errors import require_timedelta
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import for_topic

TRANSACTION_ROWS = 5000
TRANSACTION_S = 1.0
EVERY = timedelta(seconds=1)
_RETRY_S = 0.5
_RECORD_BYTES = 120
"""Overhead of a batch with a single record, in bytes."""


class Feed:
    """Feed that writes the rows of a source to a topic.

    Args:
        source: the source.
        topic: the output topic; it must exist.
        name: unique and stable name of the feed; its positions are in the topic
            ``<name>-positions``.
        settings: ``bootstrap.servers`` and other settings of an application.
        key: the serde of keys.
        value: the serde of values.
        skip_bad: whether to skip rows that are too large or that the serde cannot serialize. False
            raises on the first of them.

    Raises:
        ConfigError: the settings are invalid.
    """

    def __init__(
        self,
        source: Source,
        *,
        topic: str,
        name: str,
        settings: Mapping[str, object],
        key: Serde[Any] = serdes.string,
        value: Serde[Any] = serdes.json,
        skip_bad: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._topic = topic
        self._name = name
        self._config = StreamsConfig.parse(over(settings, {"application.id": name}))
        self._key = for_topic(key, topic, is_key=True)
        self._value = for_topic(value, topic, is_key=False)
        self._skip_bad = skip_bad
        self._row_bytes: int | None = None
        """Maximum size of a row in bytes, by the topic's max.message.bytes."""
        self._clock = clock or SystemClock()
        self._log = get_logger().bind(feed=name)
        self._positions_topic = f"{name}-positions"
        self._timeout_s = self._config.task_timeout_ms / 1000
        self._batch = AdaptiveBatchSize(
            target_s=min(self._timeout_s, self._config.transaction_timeout_ms / 1000) / 3,
            size=FIRST_RECORDS,
            max_size=TRANSACTION_ROWS,
            log=self._log,
            fields={"batch": "transaction", "unit": "rows"},
        )
        self._waiting: dict[str, tuple[str, bool]] = {}
        """By part: why the source does not read further, and whether that was logged."""
        self.rows = 0
        """Number of committed rows."""
        self.skipped = 0
        """Number of skipped rows, up to the last commit."""

    def run(
        self,
        *,
        follow: bool = False,
        every: timedelta = EVERY,
        stop: threading.Event | None = None,
    ) -> int:
        """Write the current rows, and with `follow` new rows as well.

        Args:
            follow: whether to continue until `stop` is set.
            every: time to wait after no new rows were found.
            stop: stops the feed between two transactions.

        Returns:
            The number of written rows.

        Raises:
            SourceError: the source cannot be read further, or another feed has the same name.
            StreamsError: the cluster cannot be reached, or rejects a request.
        """
        require_timedelta("every", every)
        stop = stop or threading.Event()
        self._prepare()
        failed_s = 0.0
        while True:
            writing = _FeedTransactions(
                self._make_producer(), self._commit_row, self._batch, self._clock
            )
            begun_s, begun_rows = self._clock.monotonic_s(), self.rows
            try:
                self._write(writing, stop, every, follow=follow)
                return self.rows
            except (AbortableError, OutcomeUnknownError) as error:
                # A new producer with the same name completes or aborts the open transaction.
                if self.rows == begun_rows:
                    failed_s += self._clock.monotonic_s() - begun_s
                else:
                    failed_s = 0.0
                if failed_s > self._timeout_s or stop.is_set():
                    raise
                self._log.warning("source_restarted", reason=str(error))
                stop.wait(_RETRY_S)
            except ProducerFencedError as error:
                raise SourceError(
                    f"another feed has started with the name {self._name}. Give each feed a "
                    "different name"
                ) from error
            finally:
                writing.producer.close()

    def _write(
        self, writing: _FeedTransactions, stop: threading.Event, every: timedelta, *, follow: bool
    ) -> None:
        writing.producer.init()  # fences the previous feed of this name
        positions = self._committed()
        skipped = 0
        while not stop.is_set():
            found = False
            for batch in writing.aborting(self._source.read(dict(positions))):
                found = True
                refused = writing.add(batch, self._send)
                positions[batch.part] = batch.position
                if batch.skipped or refused:
                    skipped += batch.skipped + len(refused)
                    first = batch.reason or str(refused[0])
                    left_out = batch.skipped + len(refused)
                    self._log.warning("rows_skipped", rows=left_out, first=first)
                if writing.is_due():
                    self.rows += writing.commit()
                    self.skipped, skipped = self.skipped + skipped, 0
                if stop.is_set():
                    break
            self.rows += writing.commit()
            self.skipped, skipped = self.skipped + skipped, 0
            if not found:
                self._report_waiting(at_once=not follow)
                if not follow:
                    return
                stop.wait(every.total_seconds())

    def _report_waiting(self, *, at_once: bool) -> None:
        """Log why parts of a source are not read yet, after they have waited a whole interval."""
        waiting: Mapping[str, str] = getattr(self._source, "waiting", {})
        for part, reason in waiting.items():
            seen = self._waiting.get(part)
            if seen != (reason, True) and (at_once or seen == (reason, False)):
                self._log.warning("rows_waiting", part=part, reason=reason)
                self._waiting[part] = reason, True
            elif seen != (reason, True):
                self._waiting[part] = reason, False

    # -- writing -------------------------------------------------------------------------------

    def _send(self, producer: TransactionalProducer, batch: Batch) -> list[SourceError]:
        refused: list[SourceError] = []
        for row in batch.rows:
            try:
                self._send_row(producer, row, batch.part)
            except SourceError as error:
                if not self._skip_bad:
                    raise
                refused.append(error)
        producer.apply_backpressure(self._timeout_s)
        return refused

    def _send_row(self, producer: TransactionalProducer, row: Row, part: str) -> None:
        key, value = self._written(row, part)
        time_ms = self._clock.now_ms() if row.timestamp_ms is None else row.timestamp_ms
        size, most = len(key or b"") + len(value or b""), self._row_bytes
        try:
            if most is not None and size > most:
                raise RecordTooLargeError(self._topic, size, most)
            producer.send(self._topic, value, key, -1, time_ms, list(row.headers) or None)
        except RecordTooLargeError as error:
            where = str(row.where) or f"a row of {part!r}"
            raise SourceError(
                f"{where} is too large for {self._topic} or the producer ({size} bytes). Increase "
                "the topic's max.message.bytes and producer.message.max.bytes, or remove the row"
            ) from error

    def _written(self, row: Row, part: str) -> tuple[bytes | None, bytes | None]:
        try:
            key = None if row.key is None else self._key.serialize(row.key)
            return key, None if row.value is None else self._value.serialize(row.value)
        except (SerdeError, RecursionError) as error:
            where = str(row.where) or f"a row of {part!r}"
            reason = error if isinstance(error, SerdeError) else "it is nested too deeply"
            raise SourceError(
                f"{where} cannot be serialized for {self._topic} ({reason}). Convert it to a value "
                "of the serde, or remove it"
            ) from error

    def _commit_row(self, producer: TransactionalProducer, part: str, position: Position) -> None:
        value = json.dumps(position).encode()
        now_ms = self._clock.now_ms()
        name = part.encode(errors="surrogateescape")  # a file's name may be any bytes
        producer.send(self._positions_topic, value, name, 0, now_ms, None)

    def _make_producer(self) -> TransactionalProducer:
        config = {
            **self._config.producer_config(f"{self._name}-feed"),
            "delivery.report.only.error": False,
        }
        return TransactionalProducer(config, timeout_s=self._timeout_s)

    # -- topics and positions ------------------------------------------------------------------

    def _prepare(self) -> None:
        admin = self._admin()
        found = admin.describe([self._topic, self._positions_topic])
        if self._topic not in found:
            raise MissingTopicError(
                f"topic {self._topic} does not exist. Create it: headrace topics create "
                f"{self._topic}",
                topics=[self._topic],
            )
        limit = found[self._topic].max_message_bytes
        self._row_bytes = None if limit is None else limit - _RECORD_BYTES
        own = found.get(self._positions_topic)
        if own is None:
            new = NewTopic(
                self._positions_topic,
                1,
                self._config.replication_factor,
                {"cleanup.policy": "compact"},
                "its records are read in order",
                changelog=False,
            )
            admin.create([new])
        elif own.cleanup_policy not in (None, {"compact"}):
            raise MisconfiguredTopicError(
                f"the cleanup.policy of {self._positions_topic} deletes the positions of feed "
                f"{self._name}. Set it to compact, or give the feed another name"
            )

    def _admin(self) -> LiveAdmin:
        return LiveAdmin(self._config.admin_config(), timeout_s=self._timeout_s)

    def _committed(self) -> dict[str, Position]:
        """Return the committed positions; earlier feeds of the same name are fenced."""
        tp = TopicPartition(self._positions_topic, 0)
        ends = self._admin().stable_offsets([tp])
        begins = self._admin().start_offsets([tp])
        positions: dict[str, Position] = {}
        with closing(TopicReader(self._config.restore_config())) as reader:
            for message in reader.read(begins, ends):
                part = (message.key() or b"").decode(errors="surrogateescape")
                positions[part] = json.loads(message.value() or b"null")
        self._log.info("source_positions_read", parts=len(positions))
        return positions


class _FeedTransactions:
    """Transactions of a producer.

    Args:
        write_position: called with the producer, the part and its position.
        batch: limits the rows of a transaction.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        write_position: Callable[[TransactionalProducer, str, Position], None],
        batch: AdaptiveBatchSize,
        clock: Clock,
    ) -> None:
        self.producer = producer
        self._write_position = write_position
        self._batch = batch
        self._clock = clock
        self._positions: dict[str, Position] = {}
        self._rows = 0
        self._begun_s = 0.0
        self._waited_s = 0.0
        """Total wait of sends until the transaction began, in seconds."""

    def add(
        self, batch: Batch, send: Callable[[TransactionalProducer, Batch], list[SourceError]]
    ) -> list[SourceError]:
        """Write a batch; return the errors of skipped rows."""
        if not self._positions:
            self.producer.begin()
            self._begun_s = self._clock.monotonic_s()
            self._waited_s = self.producer.waited_s
        self._positions[batch.part] = batch.position
        try:
            refused = send(self.producer, batch)
        except SourceError:
            self.producer.abort()
            raise
        self._rows += len(batch.rows) - len(refused)
        return refused

    def aborting(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a source; if it fails, abort the open transaction."""
        reading = iter(batches)
        while True:
            try:
                batch = next(reading)
            except StopIteration:
                return
            except BaseException:
                if self._positions:
                    self.producer.abort()
                raise
            yield batch

    def is_due(self) -> bool:
        is_old = self._clock.monotonic_s() - self._begun_s > TRANSACTION_S
        return self._rows >= self._batch.size or is_old

    def commit(self) -> int:
        if not self._positions:
            return 0
        for part, position in self._positions.items():
            self._write_position(self.producer, part, position)
        producer, waited_s = self.producer, self.producer.waited_s - self._waited_s
        with adjusting(self._batch, self._rows, producer, self._clock, waited_s=waited_s):
            producer.commit()
        rows, self._rows = self._rows, 0
        self._positions.clear()
        return rows
