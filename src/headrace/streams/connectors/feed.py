"""Writing the rows of a source to a topic, each of them once.

    positions ─► the source's batches ─► a transaction: rows, and the positions behind them
        ▲                                        │
        └──── the topic <name>-positions ◄───────┘

The positions are the last records of a compacted topic, written in the transaction of the rows. A
feed begins by fencing whoever has its name, which decides what that one left open, and then reads
them: what is committed is there with its rows, and what is not is neither.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import for_topic

TRANSACTION_ROWS = 5000
TRANSACTION_S = 1.0
EVERY = timedelta(seconds=1)
_AGAIN_S = 0.5
_RECORD_BYTES = 120
"""What a batch with one record has besides its key and value."""


class Feed:
    """Writes the rows of a source to a topic.

    Args:
        source: what is read.
        topic: what is written to; it must exist.
        name: of the feed, the same each time; its positions are in the topic ``<name>-positions``.
        settings: ``bootstrap.servers`` and others of an application's.
        key: the serde of keys.
        value: the serde of values.
        skip_bad: leave out rows that the topic does not take: they are too large, or nothing that
            the serde can write. False refuses the first one.

    Raises:
        ConfigError: the settings are wrong.
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
        """How large a row may be, as the topic is set."""
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
        """By part, why a source does not read on, and whether that was logged."""
        self.rows = 0
        """How many were committed."""
        self.skipped = 0
        """How many the source has left out before what was committed."""

    def run(
        self,
        *,
        follow: bool = False,
        every: timedelta = EVERY,
        stop: threading.Event | None = None,
    ) -> int:
        """Write what is there, and with `follow` what comes.

        Args:
            follow: go on until `stop` is set.
            every: how long to wait where nothing new was there.
            stop: ends it between two transactions.

        Returns:
            How many rows were written.

        Raises:
            SourceError: the source cannot be read on, or another feed has the name.
            StreamsError: the cluster cannot be reached, or refuses.
        """
        stop = stop or threading.Event()
        self._prepare()
        failed_s = 0.0
        while True:
            writing = _Writing(self._make_producer(), self._commit_row, self._batch, self._clock)
            begun_s, begun_rows = self._clock.monotonic_s(), self.rows
            try:
                self._write(writing, stop, every, follow=follow)
                return self.rows
            except (AbortableError, OutcomeUnknownError) as error:
                # A new producer of the name decides what this one has left open.
                if self.rows == begun_rows:
                    failed_s += self._clock.monotonic_s() - begun_s
                else:
                    failed_s = 0.0
                if failed_s > self._timeout_s or stop.is_set():
                    raise
                self._log.warning("feed_begins_again", reason=str(error))
                stop.wait(_AGAIN_S)
            except ProducerFencedError as error:
                raise SourceError(
                    f"another feed of the name {self._name} has begun, and this one ends; give "
                    "each its own name"
                ) from error
            finally:
                writing.close()

    def _write(
        self, writing: _Writing, stop: threading.Event, every: timedelta, *, follow: bool
    ) -> None:
        writing.begin_identity()
        positions = self._committed()
        skipped = 0
        while not stop.is_set():
            found = False
            for batch in writing.or_void(self._source.read(dict(positions))):
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
        """Log what a source does not read yet, once it has waited for a whole interval."""
        waiting: Mapping[str, str] = getattr(self._source, "waiting", {})
        for part, reason in waiting.items():
            seen = self._waiting.get(part)
            if seen != (reason, True) and (at_once or seen == (reason, False)):
                self._log.warning("rows_waiting", part=part, reason=reason)
                self._waiting[part] = reason, True
            elif seen != (reason, True):
                self._waiting[part] = reason, False

    # -- what is written -----------------------------------------------------------------------

    def _send(self, producer: TransactionalProducer, batch: Batch) -> list[SourceError]:
        """Write rows; returns why those are left out that the topic does not take."""
        refused: list[SourceError] = []
        for row in batch.rows:
            try:
                self._send_row(producer, row, batch.part)
            except SourceError as error:
                if not self._skip_bad:
                    raise
                refused.append(error)
        producer.pressure(self._timeout_s)
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
                f"{where} has {size} bytes as a record, and {self._topic} or the producer takes "
                "fewer; set max.message.bytes of the topic and producer.message.max.bytes higher, "
                "or leave it out"
            ) from error

    def _written(self, row: Row, part: str) -> tuple[bytes | None, bytes | None]:
        try:
            key = None if row.key is None else self._key.serialize(row.key)
            return key, None if row.value is None else self._value.serialize(row.value)
        except (SerdeError, RecursionError) as error:
            where = str(row.where) or f"a row of {part!r}"
            reason = error if isinstance(error, SerdeError) else "it is nested too deeply"
            raise SourceError(
                f"{where} cannot be written to {self._topic}: {reason}; have the source make it a "
                "value of the serde, or leave it out"
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

    # -- what is there -------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Look at the topic, and make that of the positions."""
        admin = self._admin()
        found = admin.describe([self._topic, self._positions_topic])
        if self._topic not in found:
            raise MissingTopicError(
                f"topic {self._topic} does not exist; create it: headrace topics create "
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
                "positions are read whole",
                changelog=False,
            )
            admin.create([new])
        elif own.cleanup_policy not in (None, {"compact"}):
            raise MisconfiguredTopicError(
                f"topic {self._positions_topic} has the positions of feed {self._name}, and its "
                "cleanup.policy would delete them; set it to compact, or give the feed another name"
            )

    def _admin(self) -> LiveAdmin:
        return LiveAdmin(self._config.admin_config(), timeout_s=self._timeout_s)

    def _committed(self) -> dict[str, Position]:
        """The positions; nobody else of the name can write any more."""
        place = TopicPartition(self._positions_topic, 0)
        ends = self._admin().stable_offsets([place])
        begins = self._admin().start_offsets([place])
        reader = TopicReader(self._config.restore_config())
        positions: dict[str, Position] = {}
        try:
            for message in reader.read(begins, ends):
                part = (message.key() or b"").decode(errors="surrogateescape")
                positions[part] = json.loads(message.value() or b"null")
        finally:
            reader.close()
        self._log.info("feed_positions_read", parts=len(positions))
        return positions


class _Writing:
    """One producer's transactions.

    Args:
        write_position: called with the producer, the part and its position.
        batch: how many rows a transaction takes.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        write_position: Callable[[TransactionalProducer, str, Position], None],
        batch: AdaptiveBatchSize,
        clock: Clock,
    ) -> None:
        self._producer = producer
        self._write_position = write_position
        self._batch = batch
        self._clock = clock
        self._positions: dict[str, Position] = {}
        self._rows = 0
        self._begun_s = 0.0
        self._waited_s = 0.0
        """How long sends had waited when the transaction began."""

    def begin_identity(self) -> None:
        """Fence whoever had the name, and decide what that one left open."""
        self._producer.init()

    def add(
        self, batch: Batch, send: Callable[[TransactionalProducer, Batch], list[SourceError]]
    ) -> list[SourceError]:
        """Write a batch; returns why rows of it are left out."""
        if not self._positions:
            self._producer.begin()
            self._begun_s = self._clock.monotonic_s()
            self._waited_s = self._producer.waited_s
        self._positions[batch.part] = batch.position
        try:
            refused = send(self._producer, batch)
        except SourceError:
            self._producer.abort()
            raise
        self._rows += len(batch.rows) - len(refused)
        return refused

    def or_void(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a source; where it fails, what is not committed is aborted at once."""
        reading = iter(batches)
        while True:
            try:
                batch = next(reading)
            except StopIteration:
                return
            except BaseException:
                if self._positions:
                    self._producer.abort()
                raise
            yield batch

    def is_due(self) -> bool:
        """Whether the transaction is long enough."""
        is_old = self._clock.monotonic_s() - self._begun_s > TRANSACTION_S
        return self._rows >= self._batch.size or is_old

    def commit(self) -> int:
        """Commit what was written, with its positions; returns how many rows it was."""
        if not self._positions:
            return 0
        for part, position in self._positions.items():
            self._write_position(self._producer, part, position)
        producer, waited_s = self._producer, self._producer.waited_s - self._waited_s
        with adjusting(self._batch, self._rows, producer, self._clock, waited_s=waited_s):
            producer.commit()
        rows, self._rows = self._rows, 0
        self._positions.clear()
        return rows

    def close(self) -> None:
        """Leave what is open to the successor, which decides it."""
        self._producer.close()
