"""Rows of one task and kind, kept by the task as tuples and packed by columns.

Hot path: `MadeRows.packs` makes Arrow's columns of ten thousand rows at a time; nothing in it runs
for each row but C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    packed_records,
    packed_rows,
)
from headrace.streams.plan.task_spec import TaskId
from headrace.topology.context.environment import Headers

NO_CAUSE: Order = (-1, -1, -1)
"""The order of what is made before the first record."""


class MadeRows:
    """Rows of one task and kind, by columns."""

    __slots__ = ("_causes", "_kind", "_made", "_number", "_of", "_starts", "_task", "cause", "rows")

    def __init__(self, task: TaskId, kind: str) -> None:
        self._task = task
        self._kind = kind
        self._number = 0
        self.rows: list[tuple[str, int, bytes | None, bytes | None, int, Headers | None]] = []
        self.cause: Order | None = None
        """Of the last row."""
        self._causes: list[Order] = []
        self._starts: list[int] = []
        """Where the rows of each cause begin."""
        self._of: Order = NO_CAUSE
        self._made = 0
        """How many rows the last cause of the packs before has."""

    def begin(self, cause: Order) -> None:
        """Say what the rows from here on are made of."""
        if cause != self.cause:
            self._causes.append(cause)
            self._starts.append(len(self.rows))
        self.cause = cause

    def packs(self, partitions: Mapping[str, int]) -> list[Pack]:
        """Take the rows."""
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
            places = _places(topic, partition, columns["key"], offsets, partitions)
            records = _batch(columns, RECORD)
            for label, rows in self._by_topic(topic):
                mine, chosen = (records, places) if rows is None else _of(records, places, rows)
                made += packed_records(label, self._number, mine, chosen)
        else:
            batch = _batch(columns, ROW)
            for label, rows in self._by_topic(topic):
                mine = batch if rows is None else batch.take(pa.array(rows))
                made += packed_rows(label, self._number, mine)
        self._number += len(topic)
        self.rows.clear()
        return made

    def _by_topic(self, topics: Sequence[str]) -> Iterator[tuple[Label, Any]]:
        """The rows of each topic; None for all of them."""
        sub, d = self._task
        if topics.count(topics[0]) == len(topics):
            yield Label(self._kind, sub, d, topics[0]), None
            return
        names = np.array(topics)
        for topic in sorted(set(topics)):
            yield Label(self._kind, sub, d, topic), np.flatnonzero(names == topic)

    def _orders(self) -> dict[str, Any]:
        """The order of each row, with the number of the row among those of its cause."""
        starts = np.array(self._starts, np.int64)
        counts = np.diff(starts, append=len(self.rows))
        causes = np.repeat(np.array(self._causes, np.int64), counts, axis=0)
        numbers = np.arange(len(self.rows)) - np.repeat(starts, counts)
        if self._causes[0] == self._of:
            numbers[: counts[0]] += self._made
        self._of, self._made = self._causes[-1], int(numbers[-1]) + 1
        self.cause = None
        self._causes.clear()
        self._starts.clear()
        columns = dict(zip(("mts", "src", "off"), causes.T, strict=True)) | {"seq": numbers}
        return {name: pa.array(found, RECORD.field(name).type) for name, found in columns.items()}


def _batch(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _of(records: pa.RecordBatch, places: Any, rows: Any) -> tuple[pa.RecordBatch, Any]:
    return records.take(pa.array(rows)), places[rows]


def _headers(headers: Sequence[Headers | None]) -> Any:
    if not any(headers):
        # None and an empty list are told apart by nobody.
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
            f"a record has a header with the name {name!a}, which is not UTF-8, as Spark's texts "
            "are; drop the header before the record is written or repartitioned"
        ) from error


def _places(
    topics: Sequence[str],
    chosen: Sequence[int],
    keys: Any,
    offsets: Any,
    partitions: Mapping[str, int],
) -> Any:
    """The partition of each record: as it was chosen, else by the key's hash."""
    if topics.count(topics[0]) == len(topics) and chosen.count(-1) == len(chosen):
        return _hashed(keys, offsets, partitions[topics[0]])
    places = np.array(chosen, np.int32)
    for topic in set(topics):
        mine = (places == -1) & np.array([name == topic for name in topics])
        if mine.any():
            places[mine] = _hashed(keys, offsets, partitions[topic])[mine]
    return places


def _hashed(keys: Any, offsets: Any, count: int) -> Any:
    hashed = partitions_of_keys(keys, count)
    if keys.null_count:
        # Live, records without a key go anywhere; here to the same place each time.
        nulls = np.asarray(keys.is_null())
        hashed = np.where(nulls, offsets % count, hashed).astype(np.int32)
    return hashed
