"""Outputs of the tasks of a Spark task, collected and packed.

`OutputRows` packs the rows of one task by columns. `Outputs` collects what all tasks send, delivers
`SyntheticRecord`s to tasks of the same Spark task, and yields the packs.

Hot path: `send` runs for each record that a sub-topology writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.records.murmur import partitions_of_keys
from headrace.spark_bridge.records.order import Order
from headrace.spark_bridge.records.packs import (
    HEADERS,
    RECORD,
    ROW,
    Label,
    Pack,
    batches_of,
    packed_records,
    packed_rows,
)
from headrace.state.codec import partition_for_key
from headrace.streams.errors import record_size
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.topology.context.environment import Headers, Send

# Rows of one task and kind: collected as tuples and packed by columns.
#
# Hot path: `OutputRows.packs` makes Arrow's columns of ten thousand rows at a time; only C code
# runs for each row.


NO_CAUSE: Order = (-1, -1, -1)
"""The order of rows that are made before the first record."""


class OutputRows:
    """Buffered output rows of a task and kind."""

    __slots__ = (
        "_causes",
        "_kind",
        "_number",
        "_packed_cause",
        "_rows_of_packed_cause",
        "_starts",
        "_task",
        "cause",
        "rows",
    )

    def __init__(self, task: TaskId, kind: str) -> None:
        self._task = task
        self._kind = kind
        self._number = 0
        self.rows: list[tuple[str, int, bytes | None, bytes | None, int, Headers | None]] = []
        self.cause: Order | None = None
        """Order of the record that caused the last row."""
        self._causes: list[Order] = []
        self._starts: list[int] = []
        """Index of the first row of each cause."""
        self._packed_cause: Order = NO_CAUSE
        self._rows_of_packed_cause = 0
        """Number of rows that `_packed_cause` has in earlier packs."""

    def begin(self, cause: Order) -> None:
        if cause != self.cause:
            self._causes.append(cause)
            self._starts.append(len(self.rows))
        self.cause = cause

    def packs(self, partitions: Mapping[str, int]) -> list[Pack]:
        """Remove all buffered rows and return them as packs."""
        topic, partition, key, value, timestamp, headers = zip(*self.rows, strict=True)
        columns = {
            "partition": pa.array(partition, pa.int32()),
            "key": pa.array(key, pa.binary()),
            "value": pa.array(value, pa.binary()),
            "timestamp": pa.array(timestamp, pa.int64()),
            "headers": _headers(headers),
        }
        made: list[Pack] = []
        if self._kind == "record":
            columns |= self._orders()
            offsets = np.asarray(columns["off"])
            partition_of = _partitions(topic, partition, columns["key"], offsets, partitions)
            records = _batch(columns, RECORD)
            for label, rows in self._by_topic(topic):
                selected, targets = (
                    (records, partition_of)
                    if rows is None
                    else _rows_of_topic(records, partition_of, rows)
                )
                made += packed_records(label, self._number, selected, targets)
        else:
            batch = _batch(columns, ROW)
            for label, rows in self._by_topic(topic):
                selected = batch if rows is None else batch.take(pa.array(rows))
                made += packed_rows(label, self._number, selected)
        self._number += len(topic)
        self.rows.clear()
        return made

    def _by_topic(self, topics: Sequence[str]) -> Iterator[tuple[Label, Any]]:
        """Yield a label and the row indexes of each topic; None as indexes means all rows."""
        sub, partition = self._task
        if topics.count(topics[0]) == len(topics):
            yield Label(self._kind, sub, partition, topics[0]), None
            return
        names = np.array(topics)
        for topic in sorted(set(topics)):
            yield Label(self._kind, sub, partition, topic), np.flatnonzero(names == topic)

    def _orders(self) -> dict[str, Any]:
        """Return the order columns, and clear the causes; ``seq`` counts rows across packs."""
        starts = np.array(self._starts, np.int64)
        counts = np.diff(starts, append=len(self.rows))
        causes = np.repeat(np.array(self._causes, np.int64), counts, axis=0)
        numbers = np.arange(len(self.rows)) - np.repeat(starts, counts)
        if self._causes[0] == self._packed_cause:
            numbers[: counts[0]] += self._rows_of_packed_cause
        self._packed_cause, self._rows_of_packed_cause = self._causes[-1], int(numbers[-1]) + 1
        self.cause = None
        self._causes.clear()
        self._starts.clear()
        columns = dict(zip(("mts", "src", "off"), causes.T, strict=True)) | {"seq": numbers}
        return {name: pa.array(found, RECORD.field(name).type) for name, found in columns.items()}


def _batch(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _rows_of_topic(
    records: pa.RecordBatch, partition_of: Any, rows: Any
) -> tuple[pa.RecordBatch, Any]:
    return records.take(pa.array(rows)), partition_of[rows]


def _headers(headers: Sequence[Headers | None]) -> Any:
    if not any(headers):
        # None and an empty list are equivalent.
        return pa.nulls(len(headers), HEADERS)
    rows = [
        None if h is None else [{"name": name, "value": value} for name, value in h]
        for h in headers
    ]
    try:
        return pa.array(rows, HEADERS)
    except UnicodeEncodeError as error:
        name: str = error.object
        raise CannotBackfillError(
            f"a record has a header whose name is not UTF-8 ({name!a}). Remove the header before "
            "the record is written or repartitioned"
        ) from error


def _partitions(
    topics: Sequence[str],
    explicit: Sequence[int],
    keys: Any,
    offsets: Any,
    partitions: Mapping[str, int],
) -> Any:
    """Return the partition of each record: explicit, or else by the hash of the key."""
    if topics.count(topics[0]) == len(topics) and explicit.count(-1) == len(explicit):
        return _hashed(keys, offsets, partitions[topics[0]])
    found = np.array(explicit, np.int32)
    for topic in set(topics):
        is_hashed = (found == -1) & np.array([name == topic for name in topics])
        if is_hashed.any():
            found[is_hashed] = _hashed(keys, offsets, partitions[topic])[is_hashed]
    return found


def _hashed(keys: Any, offsets: Any, count: int) -> Any:
    hashed = partitions_of_keys(keys, count)
    if keys.null_count:
        # Live, records without a key may go to any partition; here, to the same one in each run.
        nulls = np.asarray(keys.is_null())
        hashed = np.where(nulls, offsets % count, hashed).astype(np.int32)
    return hashed


# Outputs of all tasks of a Spark task.


BATCH_ROWS = 10_000
"""Number of buffered rows that triggers packing."""
BUFFERED_BYTES_MAX = 16 << 20
"""Maximum size of the buffered rows: packing needs three or four copies, and Arrow's columns of
bytes are limited to 2 GiB."""
ROW_BYTES = 16
"""Size of a row in columns without its key and value."""

CREATE_TIME = 1


class SyntheticRecord(
    tuple[TopicPartition, int, "bytes | None", "bytes | None", int, "Headers | None"]
):
    """Record that did not come from Kafka's client (a
    `headrace.streams.kafka.protocols.ReceivedMessage`).

    Fields: partition, offset, key, value, timestamp and headers. The offset of a record that was
    never in Kafka is the number of such records before it. A tuple, because millions are made.
    """

    __slots__ = ()

    def topic(self) -> str:
        return self[0].topic

    def partition(self) -> int:
        return self[0].partition

    def offset(self) -> int:
        return self[1]

    def key(self) -> bytes | None:
        return self[2]

    def value(self) -> bytes | None:
        return self[3]

    def timestamp(self) -> tuple[int, int]:
        return CREATE_TIME, self[4]

    def headers(self) -> Headers | None:
        return self[5]


class AttributedRecords(list[Any]):
    """List of records that, while iterated, sets the cause of outputs to the current record."""

    __slots__ = ("_orders", "_outputs")

    def __init__(self, records: Iterable[Any], orders: Sequence[Order], outputs: Outputs) -> None:
        super().__init__(records)
        self._orders = orders
        self._outputs = outputs

    def __iter__(self) -> Iterator[Any]:
        return _CauseIterator(super().__iter__(), iter(self._orders), self._outputs)


class _CauseIterator:
    """Iterator with a length hint, from which a task derives the record that it processes."""

    __slots__ = ("_orders", "_outputs", "_records")

    def __init__(self, records: Iterator[Any], orders: Iterator[Order], outputs: Outputs) -> None:
        self._records = records
        self._orders = orders
        self._outputs = outputs

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        record = next(self._records)
        self._outputs.cause = next(self._orders)
        return record

    def __length_hint__(self) -> int:
        return length_hint(self._records)


class Outputs:
    """Collector of the records that tasks of a Spark task send.

    Args:
        delivered: topics whose records are read by tasks of the same Spark task.
        with_sinks: keep the records for topics outside of the application.
    """

    def __init__(
        self,
        *,
        partitions: Mapping[str, int],
        internal: Collection[str],
        delivered: Collection[str] = (),
        with_sinks: bool = True,
    ) -> None:
        self.cause: Order = NO_CAUSE
        """Order of the record in process."""
        self._partitions = partitions
        self._internal = frozenset(internal)
        self._delivered = frozenset(delivered)
        self._with_sinks = with_sinks
        self._rows: dict[tuple[TaskId, str], OutputRows] = {}
        self._packs: list[Pack] = []
        """Packs that have not been taken."""
        self.deliveries: deque[tuple[TopicPartition, SyntheticRecord, Order]] = deque()
        """Records for tasks of this Spark task, in the order in which they were sent."""
        self._next_offset: dict[TopicPartition, int] = {}

    def sender(self, task: TaskId) -> Send:
        internal, delivered = self._internal, self._delivered
        with_sinks = self._with_sinks
        records = self._output_rows(task, "record")
        add_record, add_sink = records.rows.append, self._output_rows(task, "sink").rows.append
        room = BUFFERED_BYTES_MAX

        def send(
            topic: str,
            value: bytes | None,
            key: bytes | None,
            partition: int,
            timestamp: int,
            headers: Headers | None,
        ) -> None:
            nonlocal room
            if topic in delivered:
                self._deliver(topic, value, key, partition, timestamp, headers)
                return
            if topic in internal:
                if self.cause is not records.cause:
                    records.begin(self.cause)
                add_record((topic, partition, key, value, timestamp, headers))
            elif with_sinks:
                add_sink((topic, partition, key, value, timestamp, headers))
            else:
                return
            room -= ROW_BYTES + record_size(key, value, headers)
            if room < 0:
                self._pack_rows(1)
                room = BUFFERED_BYTES_MAX

        return send

    def _output_rows(self, task: TaskId, kind: str) -> OutputRows:
        rows = self._rows.get((task, kind))
        if rows is None:
            rows = self._rows[task, kind] = OutputRows(task, kind)
        return rows

    def _deliver(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        order = self.cause
        if partition == -1:
            count = self._partitions[topic]
            partition = order[2] % count if key is None else partition_for_key(key, count)
        tp = TopicPartition(topic, partition)
        offset = self._next_offset.get(tp, 0)
        self._next_offset[tp] = offset + 1
        row = SyntheticRecord((tp, offset, key, value, timestamp, headers))
        self.deliveries.append((tp, row, order))

    def add(
        self,
        task: TaskId,
        kind: str,
        topic: str,
        rows: Iterable[tuple[bytes | None, bytes | None, int]],
        partition: int,
    ) -> Iterator[pa.RecordBatch]:
        """Add rows of key, value and timestamp for a partition, and yield packs as they fill."""
        found = self._output_rows(task, kind)
        room = BUFFERED_BYTES_MAX
        for key, value, timestamp in rows:
            found.rows.append((topic, partition, key, value, timestamp, None))
            room -= ROW_BYTES + record_size(key, value, None)
            if room < 0 or len(found.rows) >= BATCH_ROWS:
                yield from batches_of(found.packs(self._partitions))
                room = BUFFERED_BYTES_MAX

    def take(self, *, everything: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the full packs, or with `everything` all rows as packs."""
        self._pack_rows(1 if everything else BATCH_ROWS)
        packs, self._packs = self._packs, []
        yield from batches_of(packs)

    def _pack_rows(self, min_rows: int) -> None:
        for found in self._rows.values():
            if len(found.rows) >= min_rows:
                self._packs += found.packs(self._partitions)
