"""Reader of topic partitions in Spark's Python workers, as decoded Arrow columns.

First the rows of a changelog partition: the last row of each key (`latest`), or all versions of it
(`versions`). Then the reader: `PartitionRange` is its part of a topic, `RowFormat` decodes rows
into columns, and `TopicRows` runs in the worker.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from headrace.spark_bridge.dataframes.columns import Column, times
from headrace.spark_bridge.errors import ReadError
from headrace.spark_bridge.executor_errors import without_record_texts
from headrace.spark_bridge.read import OpenConsumer, consumer_opener, read_range
from headrace.spark_bridge.records.packs import HEADERS, TIMESTAMP, schema_ddl
from headrace.state.spec import StoreSpec
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.connectivity import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition
from headrace.streams.plan.topics import describe_as
from headrace.topology.graph.graph import AnySerde

# Rows of a changelog partition. Its final state is exactly the last row of each key.
#
# All records of a key are in one partition, so no shuffle is needed. The last rows of a partition
# are held in memory.


class LatestRow(NamedTuple):
    """Last record of a key."""

    key: bytes
    value: bytes
    timestamp: int
    offset: int


class Version(NamedTuple):
    """Value of a key from `valid_from` to `valid_to`; None means that it is current."""

    key: bytes
    value: bytes
    valid_from: int
    valid_to: int | None
    offset: int


Batches = Iterable[Sequence[ReceivedMessage]]


def latest(batches: Batches) -> list[LatestRow]:
    """Return the last records in offset order, without deleted keys and records without a key."""
    last: dict[bytes, tuple[bytes, int, int]] = {}
    for batch in batches:
        for record in batch:
            key = record.key()
            if key is None:
                continue
            # A key that is written again moves to the end.
            last.pop(key, None)
            value = record.value()
            if value is not None:
                last[key] = value, record.timestamp()[1], record.offset()
    return [LatestRow(key, *found) for key, found in last.items()]


def without_expired(
    rows: Sequence[LatestRow], time_of: Callable[[bytes], int], retention_ms: int | None
) -> list[LatestRow]:
    """Remove windows that the store has expired but the topic still has."""
    if retention_ms is None or not rows:
        return list(rows)
    horizon = max(time_of(row.key) for row in rows) - retention_ms
    return [row for row in rows if time_of(row.key) >= horizon]


def versions(batches: Batches, retention_ms: int | None) -> Iterator[Version]:
    """Yield all retained versions by key and time; the last record of a key and time counts."""
    found: dict[tuple[bytes, int], tuple[bytes | None, int]] = {}
    for batch in batches:
        for record in batch:
            key = record.key()
            if key is not None:
                found[key, record.timestamp()[1]] = record.value(), record.offset()
    newest = max((time for _, time in found), default=0)
    horizon = -1 if retention_ms is None else newest - retention_ms
    for key, versions in groupby(sorted(found), itemgetter(0)):
        starts = [time for _, time in versions]
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            value, offset = found[key, start]
            if value is not None and (end is None or end > horizon):
                yield Version(key, value, start, end, offset)


# The reader of partition ranges, and the columns of its batches.


BATCH_ROWS = 10_000

Change = Callable[[Sequence[ReceivedMessage]], Any]
RowKind = Literal["rows", "versions", "records"]


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Partition from its first record to a fixed end."""

    tp: TopicPartition
    start: int
    end: int


def fixed_ranges(
    config: StreamsConfig, topic: str, *, to_commits: bool = False
) -> tuple[PartitionRange, ...]:
    """Read the current ranges; `to_commits` ends them at the application's committed offsets."""
    reach(config.admin_config())
    admin = GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    description = describe_as(admin, [topic]).get(topic)
    if description is None:
        raise ReadError(f"topic {topic} does not exist{nearest(topic, admin.names())}")
    tps = [TopicPartition(topic, number) for number in range(description.partitions)]
    starts, ends = admin.start_offsets(tps), admin.stable_offsets(tps)
    if to_commits:
        committed = admin.committed(config.application_id, decided=True)
        reached = {tp: committed[tp].offset if tp in committed else 0 for tp in tps}
        ends = {tp: min(end, reached[tp]) for tp, end in ends.items()}
    return tuple(PartitionRange(tp, starts[tp], ends[tp]) for tp in tps)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name, or an empty text."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Columns for keys.

    Args:
        windowed: decodes windowed keys; None for keys without a window.
    """

    key: Column
    windowed: AnySerde | None = None

    @property
    def fields(self) -> list[tuple[str, Any]]:
        window = [("window_start", TIMESTAMP), ("window_end", TIMESTAMP)]
        return [("key", self.key.type), *(window if self.windowed else [])]

    def arrays(self, keys: Sequence[bytes | None]) -> list[Any]:
        if self.windowed is None:
            return [self.key.array(keys)]
        found = [None if key is None else self.windowed.deserialize(key) for key in keys]
        windows = [None if one is None else one.window for one in found]
        plain = self.key.plain
        inner = [None if one is None else one.key for one in found]
        if plain is not None:
            inner = [None if key is None else plain(key) for key in inner]
        return [
            pa.array(inner, self.key.type),
            times([None if window is None else window.start_ms for window in windows]),
            times([None if window is None else window.end_ms for window in windows]),
        ]


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Row format for the records of a topic.

    Args:
        what: the last row of each key, all versions of each key, or all records.
        spec: of the store, if the rows are of a store.
        with_offset: add a column of offsets.
    """

    what: RowKind
    key: KeyColumns
    value: Column
    spec: StoreSpec | None = None
    with_offset: bool = False

    @property
    def fields(self) -> list[tuple[str, Any]]:
        fields = [*self.key.fields, ("value", self.value.type), ("timestamp", TIMESTAMP)]
        if self.what == "versions":
            fields += [("valid_from", TIMESTAMP), ("valid_to", TIMESTAMP)]
        fields.append(("partition", pa.int32()))
        if self.with_offset:
            fields.append(("offset", pa.int64()))
        if self.what == "records":
            fields.append(("headers", HEADERS))
        return fields

    @property
    def schema(self) -> Any:
        return pa.schema(self.fields)

    @property
    def ddl(self) -> str:
        return schema_ddl(self.schema)

    def batches(
        self, tp: TopicPartition, records: Iterator[Sequence[ReceivedMessage]]
    ) -> Iterator[Any]:
        rows: Iterator[Any]
        if self.what == "records":
            rows = (record for batch in records for record in batch)
        elif self.what == "versions":
            rows = versions(records, None if self.spec is None else self.spec.retention_ms)
        else:
            rows = iter(self._retained(latest(records)))
        while some := list(islice(rows, BATCH_ROWS)):
            yield self._batch(tp, some)

    def _retained(self, rows: list[LatestRow]) -> list[LatestRow]:
        time_of = None if self.spec is None else self.spec.rows.time_of
        if time_of is None or self.spec is None:
            return rows
        return without_expired(rows, time_of, self.spec.retention_ms)

    def _batch(self, tp: TopicPartition, rows: list[Any]) -> Any:
        more: list[Any] = []
        if self.what == "records":
            keys, values = [r.key() for r in rows], [r.value() for r in rows]
            stamps, offsets = [r.timestamp()[1] for r in rows], [r.offset() for r in rows]
        elif self.what == "versions":
            found: list[Version] = rows
            keys, values = [r.key for r in found], [r.value for r in found]
            stamps, offsets = [r.valid_from for r in found], [r.offset for r in found]
            more = [times(stamps), times([r.valid_to for r in found])]
        else:
            keys, values, stamps, offsets = (list(column) for column in zip(*rows, strict=True))
        arrays = [*self.key.arrays(keys), self.value.array(values), times(stamps), *more]
        arrays.append(pa.array([tp.partition] * len(rows), pa.int32()))
        if self.with_offset:
            arrays.append(pa.array(offsets, pa.int64()))
        if self.what == "records":
            arrays.append(pa.array([_headers(record) for record in rows], HEADERS))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _headers(record: ReceivedMessage) -> list[dict[str, Any]] | None:
    found = record.headers()
    return None if not found else [{"name": _text(name), "value": value} for name, value in found]


def _text(name: str) -> str:
    """Replace bytes that are not UTF-8, as Spark's own Kafka source does."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


class TopicRows:
    """Function that Spark calls in its workers: takes numbers of ranges, and yields rows.

    Args:
        changed: converts the records first (see `headrace.spark_bridge.dataframes.changelog`).
    """

    def __init__(
        self,
        ranges: Sequence[PartitionRange],
        form: RowFormat,
        config: StreamsConfig,
        changed: Change | None = None,
    ) -> None:
        self._ranges = ranges
        self._form = form
        self._config = config
        self._changed = changed

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        opener = consumer_opener(self._config)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.rows(self._ranges[number], opener)

    def rows(self, one: PartitionRange, open_consumer: OpenConsumer) -> Iterator[Any]:
        timeout_s = self._config.task_timeout_ms / 1000
        with without_record_texts(full=self._config.log_errors == "full"):
            found: Iterator[Any] = read_range(
                open_consumer, one.tp, one.start, one.end, timeout_s=timeout_s
            )
            if self._changed is not None:
                found = map(self._changed, found)
            yield from self._form.batches(one.tp, found)
