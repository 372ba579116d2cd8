"""What the tasks of one Spark task make, on its way into Arrow batches.

Hot path: `send` runs for each record that a sub-topology writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_bridge.murmur import partitions_of_keys
from spark_bridge.order import Order
from spark_bridge.records import HEADERS, STAGE
from state.codec import partition_for_key
from streams.clients import TopicPartition
from streams.task import TaskId
from topology.compiler import Headers, Send

__all__ = ["NO_CAUSE", "Batch", "Cause", "Outputs", "Row"]

BATCH_ROWS = 10_000
"""How many rows go into one Arrow batch."""

NO_CAUSE: Order = (-1, -1, -1)
"""The order of what is made before the first record."""

CREATE_TIME = 1


class Row:
    """A record that did not come from Kafka's client (a `streams.clients.ReceivedMessage`)."""

    __slots__ = ("_headers", "_key", "_offset", "_place", "_timestamp", "_value")

    def __init__(
        self,
        place: TopicPartition,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        self._place = place
        self._offset = offset
        self._key = key
        self._value = value
        self._timestamp = timestamp
        self._headers = headers

    def topic(self) -> str:
        """The topic."""
        return self._place.topic

    def partition(self) -> int:
        """The partition."""
        return self._place.partition

    def offset(self) -> int:
        """The offset; that of a record which was never in Kafka counts those before it."""
        return self._offset

    def key(self) -> bytes | None:
        """The key's bytes."""
        return self._key

    def value(self) -> bytes | None:
        """The value's bytes."""
        return self._value

    def timestamp(self) -> tuple[int, int]:
        """The kind of the timestamp and its milliseconds since 1970."""
        return CREATE_TIME, self._timestamp

    def headers(self) -> Headers | None:
        """The headers, or None where there are none."""
        return self._headers


class Cause:
    """The record that is processed now, by its order, and how much it has made."""

    __slots__ = ("made", "of", "order")

    def __init__(self) -> None:
        self.order: Order = NO_CAUSE
        self.of: Order = NO_CAUSE
        """What `made` counts for."""
        self.made = 0

    def next_number(self) -> int:
        """Count one more thing that the present record makes; records of one order count on."""
        if self.order != self.of:
            self.of, self.made = self.order, 0
        number = self.made
        self.made = number + 1
        return number


class Batch(list[Any]):
    """Records that say, while they are iterated, which of them is the cause of what is made."""

    __slots__ = ("_cause", "_orders")

    def __init__(self, records: Iterable[Any], orders: Sequence[Order], cause: Cause) -> None:
        super().__init__(records)
        self._orders = orders
        self._cause = cause

    def __iter__(self) -> Iterator[Any]:
        cause = self._cause
        for order, record in zip(self._orders, super().__iter__(), strict=True):
            cause.order = order
            yield record


class Delivery(NamedTuple):
    """A record for a task of the same Spark task."""

    place: TopicPartition
    record: Row
    order: Order


class _Rows:
    """Rows of one task and kind, by columns."""

    __slots__ = ("_kind", "_number", "_task", "columns", "orders")

    def __init__(self, task: TaskId, kind: str) -> None:
        self._task = task
        self._kind = kind
        self._number = 0
        self._clear()

    def _clear(self) -> None:
        self.columns: list[tuple[str, int, bytes | None, bytes | None, int, Headers | None]] = []
        self.orders: list[tuple[Order, int]] = []

    def batch(self, partitions: Mapping[str, int]) -> pa.RecordBatch:
        """Take the rows."""
        count = len(self.columns)
        topic, partition, key, value, timestamp, headers = zip(*self.columns, strict=True)
        keys = pa.array(key, pa.binary())
        if self._kind == "record":
            (mts, src, off), seq = (
                zip(*(order for order, _ in self.orders), strict=True),
                [number for _, number in self.orders],
            )
            order = [
                pa.array(mts, pa.int64()),
                pa.array(src, pa.int32()),
                pa.array(off, pa.int64()),
                pa.array(seq, pa.int32()),
            ]
            places = _places(topic, partition, keys, off, partitions)
        else:
            order = [pa.nulls(count, field.type) for field in list(STAGE)[-4:]]
            places = pa.array(partition, pa.int32())
        arrays = [
            _constant(self._task.sub_topology, pa.int32(), count),
            _constant(self._task.partition, pa.int32(), count),
            _constant(self._kind, pa.string(), count),
            pa.array(topic, pa.string()),
            places,
            pa.array(np.arange(self._number, self._number + count)),
            keys,
            pa.array(value, pa.binary()),
            pa.array(timestamp, pa.int64()),
            _headers(headers),
            *order,
        ]
        self._number += count
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=STAGE)


def _constant(value: object, kind: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)


def _headers(headers: Sequence[Headers | None]) -> Any:
    if not any(headers):
        # None and an empty list are told apart by nobody.
        return pa.nulls(len(headers), HEADERS)
    rows = [
        None if h is None else [{"name": name, "value": value} for name, value in h]
        for h in headers
    ]
    return pa.array(rows, HEADERS)


def _places(
    topics: Sequence[str],
    chosen: Sequence[int],
    keys: Any,
    offsets: Sequence[int],
    partitions: Mapping[str, int],
) -> Any:
    """The partition of each record: as it was chosen, else by the key's hash."""
    places = np.array(chosen, np.int32)
    for topic in set(topics):
        count = partitions[topic]
        mine = places == -1
        if len(set(topics)) > 1:
            mine &= np.array([name == topic for name in topics])
        if not mine.any():
            continue
        hashed = partitions_of_keys(keys, count)
        if keys.null_count:
            # Live, records without a key go anywhere; here to the same place each time.
            nulls = np.asarray(keys.is_null())
            hashed = np.where(nulls, np.array(offsets) % count, hashed)
        places[mine] = hashed[mine]
    return pa.array(places, pa.int32())


class Outputs:
    """Takes what tasks send.

    Args:
        cause: of what is sent.
        partitions: the partition count of each repartition topic.
        internal: the repartition topics.
        delivered: those of them that tasks of the same Spark task read.
        with_sinks: whether records for other topics are kept.
    """

    def __init__(
        self,
        *,
        cause: Cause,
        partitions: Mapping[str, int],
        internal: Collection[str],
        delivered: Collection[str] = (),
        with_sinks: bool = True,
    ) -> None:
        self._cause = cause
        self._partitions = partitions
        self._internal = frozenset(internal)
        self._delivered = frozenset(delivered)
        self._with_sinks = with_sinks
        self._rows: dict[tuple[TaskId, str], _Rows] = {}
        self.deliveries: deque[Delivery] = deque()
        """What waits for tasks of this Spark task, in the order in which it was sent."""
        self._next_offset: dict[TopicPartition, int] = {}

    def sender(self, task: TaskId) -> Send:
        """Return what a task sends with."""
        cause, internal, delivered = self._cause, self._internal, self._delivered
        with_sinks = self._with_sinks
        records, sinks = self._of(task, "record"), self._of(task, "sink")

        def send(
            topic: str,
            value: bytes | None,
            key: bytes | None,
            partition: int,
            timestamp: int,
            headers: Headers | None,
        ) -> None:
            if topic in delivered:
                self._deliver(topic, value, key, partition, timestamp, headers)
            elif topic in internal:
                records.columns.append((topic, partition, key, value, timestamp, headers))
                records.orders.append((cause.order, cause.next_number()))
            elif with_sinks:
                sinks.columns.append((topic, partition, key, value, timestamp, headers))

        return send

    def _of(self, task: TaskId, kind: str) -> _Rows:
        rows = self._rows.get((task, kind))
        if rows is None:
            rows = self._rows[task, kind] = _Rows(task, kind)
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
        order = self._cause.order
        if partition == -1:
            count = self._partitions[topic]
            partition = order[2] % count if key is None else partition_for_key(key, count)
        place = TopicPartition(topic, partition)
        offset = self._next_offset.get(place, 0)
        self._next_offset[place] = offset + 1
        row = Row(place, offset, key, value, timestamp, headers)
        self.deliveries.append(Delivery(place, row, order))

    def add(
        self,
        task: TaskId,
        kind: str,
        topic: str,
        rows: Iterable[tuple[bytes | None, bytes | None, int]],
        partition: int,
    ) -> Iterator[pa.RecordBatch]:
        """Add rows of key, value and timestamp for a partition; yields batches as they fill up."""
        columns = self._of(task, kind).columns
        for key, value, timestamp in rows:
            columns.append((topic, partition, key, value, timestamp, None))
            if len(columns) >= BATCH_ROWS:
                yield self._of(task, kind).batch(self._partitions)
                columns = self._of(task, kind).columns

    def take(self, *, everything: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield what fills a batch, or everything."""
        for rows in self._rows.values():
            if rows.columns and (everything or len(rows.columns) >= BATCH_ROWS):
                yield rows.batch(self._partitions)
