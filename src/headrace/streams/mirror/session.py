"""Session of a mirror: the lifetime of a producer, from the committed state, in transactions.

    table ─► positions ─► records of the source ─► a transaction at the target:
      ▲                                              records, rows of the table, offsets
      └──────────────────────────────────────────────┘

It starts by fencing the previous producer of the mirror's name, which ends its open transaction.
Then the table contains the committed state. Any failure ends the session, and the next session
starts in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, Message

from headrace.state.log import get_logger
from headrace.streams.errors import (
    AbortableError,
    FatalClientError,
    MisconfiguredTopicError,
    RecordError,
    StreamsError,
)
from headrace.streams.kafka.adaptive_batch_size import AdaptiveBatchSize, adjusting
from headrace.streams.kafka.clients import BrokerState, new_consumer
from headrace.streams.kafka.consumer import Batches, by_partition
from headrace.streams.kafka.headers import read_headers
from headrace.streams.kafka.producer import TOO_LARGE
from headrace.streams.kafka.protocols import Clock, CommittedOffset, GroupMetadata, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader, record_tp
from headrace.streams.mirror.move import GroupWatch
from headrace.streams.mirror.names import NameClaim, RecordsLostError, table_of
from headrace.streams.mirror.table import (
    Blocks,
    Row,
    Table,
    coming_row,
    group_row,
    joined,
    owner_row,
    runs_of,
    topic_row,
)
from headrace.streams.mirror.topics import MESSAGE_MAX, MirrorTopics, Pair, Side, read_table
from headrace.streams.mirror.writer import MirrorProducer, RejectedRecord

TargetPartitions = Mapping[TopicPartition, TopicPartition]
"""Partitions of the target, by partition of the source."""


def begins_of(
    side: Side, blocks: Mapping[TopicPartition, Blocks], *, skip_lost: bool
) -> dict[TopicPartition, int]:
    """Return the source offsets at which to continue; raise RecordsLostError if they are gone."""
    starts, ends = side.cluster.start_offsets(blocks), side.cluster.end_offsets(blocks)
    begins = {}
    for tp, copied in blocks.items():
        begin, end, position = starts[tp], ends[tp], copied.position
        is_new = not (copied.position or copied.last or copied.ends)
        if position > end or (position < begin and not is_new and not skip_lost):
            raise RecordsLostError(tp, side.name, position, begin=begin, end=end)
        if position < begin and not is_new:
            get_logger().warning(
                "records_lost", partition=str(tp), first=position, last=begin - 1, cluster=side.name
            )
        begins[tp] = max(position, begin)
    return begins


def ends_of(
    side: Side, tps: TargetPartitions, blocks: Mapping[TopicPartition, Blocks], *, mirror: str
) -> dict[TopicPartition, int]:
    """Return the target's ends; raise if another producer has written, or if records are lost."""
    ends = side.cluster.end_offsets(tps.values())
    starts = side.cluster.start_offsets(tps.values())
    begins = {}
    for source, target in tps.items():
        copied = blocks[source].target_end
        if ends[target] < copied:
            raise MisconfiguredTopicError(
                f"{target} of {side.name} ends at offset {ends[target]}, and mirror {mirror} has "
                f"written up to {copied}: the target has lost records. Delete the topic, and give "
                "the mirror another --name to copy it from its beginning."
            )
        begins[target] = max(copied, starts[target])
    _require_no_other_producer(side.name, side.reading, begins, ends, mirror)
    return ends


def _require_no_other_producer(
    where: str,
    reading: Mapping[str, Any],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    mirror: str,
) -> None:
    """Raise if any record of another producer follows the copied records; markers are allowed."""
    # The marker of the last transaction occupies an offset.
    unknown = {tp: begin for tp, begin in begins.items() if begin + 1 < ends[tp]}
    if not unknown:
        return
    with closing(TopicReader(reading)) as reader:
        for message in reader.read(unknown, ends):
            tp = record_tp(message)
            raise MisconfiguredTopicError(
                f"{tp} of {where} has a record at or near offset {message.offset()} "
                f"that mirror {mirror} did not write. Stop its producer, delete the topic, and "
                "give the mirror another --name, or a --rename such as '{cluster}.{topic}'."
            )


_QUEUE_KIB, _QUEUE_RECORDS = 16 * 1024, 20_000
"""Limits of the client's prefetch queue, which is held in memory."""


class SourceReader:
    """Reader of committed records of the mirrored partitions, with positions.

    The offset of the last record is not the position: markers and aborted records may follow it. At
    the end of a partition the client reports the offset after all of them.

    Args:
        config: librdkafka's settings, from `StreamsConfig.restore_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {
            "queued.max.messages.kbytes": _QUEUE_KIB,
            "queued.min.messages": _QUEUE_RECORDS,
            **config,
            "enable.partition.eof": True,
        }
        self._client = new_consumer(self._config, BrokerState())
        self.positions: dict[TopicPartition, int] = {}
        """Next offset of each partition: all committed records before it were returned."""

    def add(self, begins: Mapping[TopicPartition, int]) -> None:
        self.positions.update(begins)
        self._client.incremental_assign(
            [confluent_kafka.TopicPartition(t, p, offset) for (t, p), offset in begins.items()]
        )

    def poll(self, records_max: int, timeout_s: float) -> Batches:
        """Return the available records by partition, or the first record within the time-out."""
        messages = self._client.consume(records_max, 0)
        if not messages and timeout_s > 0:
            first = self._client.poll(timeout_s)
            if first is None:
                return {}
            messages = [first, *self._client.consume(records_max - 1, 0)]
        ends = {}
        if set(map(Message.error, messages)) != {None}:
            ends = {record_tp(m): m.offset() or 0 for m in messages if _is_end(m)}
            messages = [m for m in messages if not _is_end(m)]
        read_headers(messages)
        batches = by_partition(messages, self._config) if messages else {}
        for tp, batch in batches.items():
            self.positions[tp] = batch[-1].offset() + 1
        for tp, end in ends.items():
            self.positions[tp] = max(self.positions[tp], end)
        return batches

    def lags(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the lag of each partition behind the last known end, in offsets."""
        lags = {}
        for tp in tps:
            ends = self._client.get_watermark_offsets(
                confluent_kafka.TopicPartition(*tp), cached=True
            )
            if ends is not None and ends[1] >= 0:
                lags[tp] = max(0, int(ends[1]) - self.positions[tp])
        return lags

    def group_metadata(self) -> GroupMetadata:
        metadata: GroupMetadata = self._client.consumer_group_metadata()
        return metadata

    def close(self) -> None:
        self._client.close()


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


MakeProducer = Callable[[Mapping[str, int]], MirrorProducer]

TRANSACTION_S = 0.2
TRANSACTION_RECORDS = 20_000
TRANSACTION_BYTES = 16 << 20
_POLL_RECORDS = 5_000
_POLL_S = 0.1
_IDLE_S = 1.0
"""Seconds between commits of group offsets, and of positions that moved without a record."""
_TOPICS_S = 5.0
_PRUNE_UPDATES = 12
_STATUS_S = 10.0
_LAGS_MAX = 20


@dataclass(slots=True)
class MirrorCounts:
    """Counters of a mirror: committed records, and transactions, including empty transactions."""

    records: int = 0
    transactions: int = 0


@dataclass(slots=True)
class _Open:
    """Open transaction.

    Args:
        waited_s: total wait of sends until it began, in seconds.
        runs: source offsets that were written.
    """

    begun_s: float
    waited_s: float
    runs: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    records: int = 0
    size: int = 0


class MirrorSession:
    """Session of a mirror: reads, writes and commits until it ends or fails.

    Args:
        make_producer: creates the mirror's producer, given the size limits of topics, which may
            grow.
        owner: checks whether this process may write.
        skip_lost: whether to continue after records that were deleted before they were copied.
        batch: limits the records of a transaction.
    """

    def __init__(
        self,
        name: str,
        source: Side,
        target: Side,
        topics: MirrorTopics,
        make_producer: MakeProducer,
        *,
        owner: NameClaim,
        skip_lost: bool,
        groups: GroupWatch,
        counts: MirrorCounts,
        batch: AdaptiveBatchSize,
        clock: Clock,
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._topics = topics
        self._owner = owner
        self._skip_lost = skip_lost
        self._groups = groups
        self._counts = counts
        self._batch = batch
        self._clock = clock
        self._log = get_logger().bind(mirror=name)
        self._table_topic = table_of(name)
        self._limits: dict[str, int] = {}
        self._make_producer = make_producer
        self._producer: MirrorProducer
        self._batch_max = 0
        self._reader = SourceReader(source.reading)
        self._table = Table()
        self._targets: dict[TopicPartition, TopicPartition] = {}
        self._expected: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._groups_written: dict[tuple[str, TopicPartition], int] = {}
        self._open: _Open | None = None
        self._rows: list[Row] = []
        self._updates = self._updated_transactions = 0
        self._updated_s = self._idle_s = self._logged_s = 0.0
        self._logged_records = 0

    def run(self, stop: threading.Event, *, once: bool) -> None:
        """Mirror until `stop` is set, or with `once` to the current ends of the topics."""
        # The producer's configuration depends on the size limits of the topics.
        table = read_table(self._target, self._table_topic)
        self._owner.require(table.owner)  # before init would fence a newer process
        self._limits.update(self._topics.limits(table))
        if once:
            self._topics.require_some(self._limits)
        self._batch_max = min(self._limits.values(), default=MESSAGE_MAX)
        self._producer = self._make_producer(self._limits)
        self._producer.init()
        self._table = read_table(self._target, self._table_topic)
        self._owner.require(self._table.owner)
        self._take(self._topics.update(self._table, self._write_alone), is_first=True)
        until = self._source.cluster.stable_offsets(self._targets) if once else None
        self._logged_s = self._clock.monotonic_s()
        while not stop.is_set():
            self._turn()
            reached = self._reader.positions
            if until is not None and all(reached[p] >= end for p, end in until.items()):
                break
        self._commit_if_needed()

    def close(self) -> None:
        """Close the connections; the next session ends an open transaction."""
        producer: MirrorProducer | None = getattr(self, "_producer", None)
        if producer is not None:
            producer.close()
        self._reader.close()

    # -- turns ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._updated_s >= _TOPICS_S:
            self._commit_if_needed()
            self._update_topics()
        if now_s - self._logged_s >= _STATUS_S:
            self._log_status(now_s)
        wait_s = _POLL_S
        if self._open is not None:
            wait_s = min(_POLL_S, max(0.0, self._open.begun_s + TRANSACTION_S - now_s))
        left = self._batch.size - (0 if self._open is None else self._open.records)
        for tp, batch in self._reader.poll(min(_POLL_RECORDS, max(1, left)), wait_s).items():
            is_open = self._begin()
            runs = is_open.runs.setdefault(tp, [])
            runs += runs_of([message.offset() for message in batch])
            is_open.size += self._producer.send_all(self._targets[tp], batch)
            is_open.records += len(batch)
            if self._producer.refused is not None:
                self._raise_refused(self._producer.refused)
        if self._is_due():
            self._commit()

    def _begin(self) -> _Open:
        if self._open is None:
            self._producer.begin()
            self._open = _Open(self._clock.monotonic_s(), self._producer.waited_s)
        return self._open

    def _is_due(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._open is None:
            return now_s - self._idle_s >= _IDLE_S and self._has_news()
        return (
            self._open.records >= self._batch.size
            or self._open.size >= TRANSACTION_BYTES
            or now_s - self._open.begun_s >= TRANSACTION_S
        )

    def _has_news(self) -> bool:
        self._idle_s = self._clock.monotonic_s()
        return bool(
            self._rows
            or self._reader.positions != self._committed
            or self._groups.offsets() != self._groups_written
        )

    def _commit_if_needed(self) -> None:
        if self._open is not None or self._has_news():
            self._commit()

    # -- the commit ----------------------------------------------------------------------------

    def _commit(self) -> None:
        done = self._begin()
        waited_s = self._producer.waited_s - done.waited_s
        with adjusting(self._batch, done.records, self._producer, self._clock, waited_s=waited_s):
            self._commit_records(done)

    def _commit_records(self, done: _Open) -> None:
        spans = self._producer.spans()
        if self._producer.refused is not None:
            self._raise_refused(self._producer.refused)
        positions = self._reader.positions
        moved = {p: to for p, to in positions.items() if self._committed.get(p) != to}
        for tp, to in moved.items():
            segments = []
            if tp in done.runs:
                span = spans[self._targets[tp]]
                self._require_alone(tp, span, sum(count for _, count in done.runs[tp]))
                segments = joined(done.runs[tp], span[0])
                self._expected[tp] = span[1] + 2  # after the transaction's marker
            self._rows += self._table.blocks[tp].advance(tp, to, segments)
        seen = self._groups.offsets()
        self._rows += [
            group_row(group, tp, offset)
            for (group, tp), offset in seen.items()
            if self._groups_written.get((group, tp)) != offset
        ]
        self._send_rows()
        if moved:
            offsets = {self._targets[p]: CommittedOffset(to) for p, to in moved.items()}
            self._producer.send_offsets(offsets, self._reader.group_metadata())
        self._producer.commit()
        self._open = None
        self._committed.update(moved)
        self._groups_written = seen
        self._counts.records += done.records
        self._counts.transactions += 1

    def _require_alone(self, tp: TopicPartition, span: tuple[int, int], count: int) -> None:
        """Raise AbortableError if another producer may have written to the target.

        The next session reads the records there: the cause may also be a late response of the
        brokers about an earlier transaction.
        """
        first, last = span
        expected = self._expected[tp]
        if first != expected or last - first + 1 != count:
            self._abort()
            raise AbortableError(
                f"{self._targets[tp]} of {self._target.name} has offsets {first} to {last} of a "
                f"transaction with {count} records from offset {expected} on"
            )

    def _send_rows(self) -> None:
        now_ms = self._clock.now_ms()
        for key, value in self._rows:
            self._producer.send(self._table_topic, value, key, 0, now_ms, None)
        self._rows = []

    def _abort(self) -> None:
        self._producer.abort()
        self._open = None

    def _raise_refused(self, refused: RejectedRecord) -> None:
        target = refused.tp
        source = next(p for p, there in self._targets.items() if there == target)
        runs = self._open.runs[source] if self._open is not None else []
        self._abort()
        first = refused.source_offset
        last = first
        if first is None or last is None:
            first, last = runs[0][0], runs[-1][0] + runs[-1][1] - 1
        with suppress(StreamsError):  # the limit may have changed since the start
            self._limits.update(self._topics.limits(self._table))
        limit = self._limits[target.topic]
        where = f"topic {target.topic} of {self._target.name}"
        is_too_large = refused.error.code() in TOO_LARGE and refused.size is None
        if not is_too_large and (refused.size is None or refused.size <= limit // 2):
            what = f"{where} rejects a record: {refused.error.str()}"
            hint = f"correct the settings of {where}"
        else:
            size = "" if refused.size is None else f" of {refused.size} bytes"
            what = (
                f"a record{size} is larger than {where} takes "
                f"(max.message.bytes={limit}): {refused.error.str()}"
            )
            hint = f"raise it: headrace topics set {target.topic} max.message.bytes=..."
        raise RecordError(
            what,
            topic=source.topic,
            partition=source.partition,
            offset=last,
            first=first,
            hint=f"nothing past it is copied: {hint}, then start the mirror again",
        )

    # -- topics --------------------------------------------------------------------------------

    def _update_topics(self) -> None:
        if self._counts.transactions == self._updated_transactions:
            # A write detects another mirror with the same name.
            self._write_alone([owner_row(self._owner.id)])
        try:
            pairs = self._topics.update(self._table, self._write_alone)
        except FatalClientError as error:
            self._log.warning("topics_not_listed", reason=str(error))
            pairs = []
        self._take(pairs, is_first=False)

    def _take(self, pairs: list[Pair], *, is_first: bool) -> None:
        """Start the new partitions of the topics that were found."""
        new = [pair for pair in pairs if pair.topic not in self._table.topics]
        if is_first or new:
            self._register(new, is_first=is_first)
        tps = {
            TopicPartition(pair.topic, n): TopicPartition(pair.mirrored.target, n)
            for pair in pairs
            for n in range(pair.partitions)
        }
        self._limits.update({pair.mirrored.target: pair.limit for pair in pairs})
        if any(pair.limit < self._batch_max for pair in pairs):
            raise AbortableError("the smallest max.message.bytes of the topics has decreased")
        added = {source: there for source, there in tps.items() if source not in self._targets}
        self._begin_partitions(added)
        self._updates += 1
        if self._updates % _PRUNE_UPDATES == 0:
            self._prune()
        self._updated_s = self._clock.monotonic_s()
        self._updated_transactions = self._counts.transactions

    def _register(self, new: list[Pair], *, is_first: bool) -> None:
        """Write owner and topics before any record; then check for an opposite new mirror."""
        self._table.topics.update({pair.topic: pair.mirrored for pair in new})
        rows = [topic_row(pair.topic, pair.mirrored) for pair in new]
        rows += [coming_row(pair.mirrored.target, None) for pair in new]
        self._write_alone([owner_row(self._owner.id), *rows] if is_first else rows)
        self._owner.has_begun = True
        back = self._topics.would_come_back(pair.topic for pair in new) if new else []
        if back:
            self._write_alone([topic_row(pair.topic, None) for pair in new])
            self._topics.refuse_loop(back[0])

    def _write_alone(self, rows: list[Row]) -> None:
        self._producer.begin()
        self._rows += rows
        self._send_rows()
        self._producer.commit()

    def _begin_partitions(self, added: dict[TopicPartition, TopicPartition]) -> None:
        if not added:
            return
        blocks = {source: self._table.blocks.get(source, Blocks()) for source in added}
        begins = begins_of(self._source, blocks, skip_lost=self._skip_lost)
        ends = ends_of(self._target, added, blocks, mirror=self._name)
        self._table.blocks.update(blocks)
        self._targets.update(added)
        self._expected.update({source: ends[there] for source, there in added.items()})
        self._committed.update({tp: blocks[tp].position for tp in added})
        self._reader.add(begins)
        self._groups.watch(self._targets)
        self._log.info(
            "partition_copies_started",
            partitions=len(added),
            topics=len({tp.topic for tp in added}),
            copied=sum(1 for tp in added if blocks[tp].position),
        )

    def _prune(self) -> None:
        """Delete table rows about records that the target has deleted."""
        starts = self._target.cluster.start_offsets(self._targets.values())
        for source, there in self._targets.items():
            self._rows += self._table.blocks[source].dropped(source, starts[there])

    def _log_status(self, now_s: float) -> None:
        lags = self._reader.lags(self._targets)
        worst = sorted(lags.items(), key=lambda item: -item[1])[:_LAGS_MAX]
        self._log.info(
            "mirror_resumed",
            records=self._counts.records,
            per_s=round((self._counts.records - self._logged_records) / (now_s - self._logged_s)),
            lag=sum(lags.values()),
            lags={str(tp): lag for tp, lag in worst if lag},
        )
        self._logged_s, self._logged_records = now_s, self._counts.records
