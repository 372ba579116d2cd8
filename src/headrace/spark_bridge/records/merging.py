"""Streaming merge of the packs that several tasks produced for another task.

Packs arrive sorted by their first records. Records before the first record of the next pack are
complete and can be yielded, so little more is held in memory than the packs that overlap.

Hot path: `_merged_runs` sorts, and `_block` creates the objects of every record in Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.spark_bridge.records.order import Block, Orders
from headrace.spark_bridge.records.outputs import SyntheticRecord
from headrace.spark_bridge.records.packs import ORDER, opened
from headrace.streams.kafka.protocols import TopicPartition

MERGE_ROWS = 20_000
"""Minimum number of buffered records before some are yielded."""
MERGE_BYTES = 64 << 20
"""Alternative limit in bytes: a sort makes a copy, and columns of bytes are limited to 2 GiB."""

_KEYS = ("mts", "src", "off", "seq")


class OpenPack(NamedTuple):
    """Pack whose records are decoded, in the task that reads it.

    Args:
        first: the values of `ORDER`: the order of the first record, and the task that produced it.
        records: in the columns of `RECORD`.
    """

    first: tuple[int, ...]
    tp: TopicPartition
    records: pa.RecordBatch


def open_packs(batches: Iterable[pa.RecordBatch]) -> Iterator[OpenPack]:
    """Decode the packs in Spark's batches, which are sorted by `ORDER`."""
    for batch in batches:
        if not batch.num_rows or "data" not in batch.schema.names:
            continue  # a batch without packs
        columns = [batch.column(name).to_pylist() for name in (*ORDER, "topic", "partition")]
        for row, (*first, topic, partition) in enumerate(zip(*columns, strict=True)):
            data = batch.column("data")[row].as_buffer()
            if data is None:
                continue  # a row without a pack
            yield OpenPack(tuple(first), TopicPartition(topic, partition), opened(data))


def merged_packs(
    packs: Iterable[OpenPack], sources: Mapping[TopicPartition, int]
) -> Iterator[Block]:
    """Yield the records of sorted packs in order, as blocks for a single partition each.

    Records of partitions outside of `sources` are numbered in their order.
    """
    numbered: dict[TopicPartition, int] = {}
    buffered: list[_BufferedPack] = []
    rows = size = 0
    for pack in packs:
        if rows >= MERGE_ROWS or size >= MERGE_BYTES:
            yield from _flush(buffered, pack.first, sources, numbered)
            rows = size = 0
        buffered.append(_BufferedPack(pack))
        rows += pack.records.num_rows
        size += pack.records.nbytes
    yield from _flush(buffered, None, sources, numbered)


class _BufferedPack:
    """Buffered pack with the position of its next record."""

    __slots__ = ("_at", "_count", "_keys", "pack")

    def __init__(self, pack: OpenPack) -> None:
        self.pack = pack
        self._at = 0
        self._count: int = pack.records.num_rows
        self._keys = [np.asarray(pack.records.column(name)) for name in _KEYS]

    @property
    def is_empty(self) -> bool:
        return self._at == self._count

    def take(self, before: tuple[int, ...] | None) -> OpenPack:
        """Take the records before an order; the result may be empty."""
        start, end = self._at, self._count
        if before is not None:
            end = bisect_left(range(end), before, start, key=self._order)
        self._at = end
        return self.pack._replace(records=self.pack.records.slice(start, end - start))

    def _order(self, row: int) -> tuple[int, ...]:
        _, _, _, _, sub, d, number = self.pack.first
        return (*(int(key[row]) for key in self._keys), sub, d, number)


def _flush(
    buffered: list[_BufferedPack],
    before: tuple[int, ...] | None,
    sources: Mapping[TopicPartition, int],
    numbered: dict[TopicPartition, int],
) -> Iterator[Block]:
    parts = [part for one in buffered if (part := one.take(before)).records.num_rows]
    buffered[:] = [one for one in buffered if not one.is_empty]
    for tp, records in _merged_runs(parts):
        yield _block(tp, records, sources, numbered)


def _merged_runs(parts: list[OpenPack]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the records of several packs in order, as runs for a single partition each."""
    if len(parts) < 2:
        for part in parts:
            yield part.tp, part.records
        return
    # Ties are ordered by the task that produced them: a stable sort keeps that order.
    parts.sort(key=lambda part: part.first[len(_KEYS) :])
    table = pa.Table.from_batches([part.records for part in parts]).combine_chunks()
    keys = [np.asarray(table.column(name)) for name in reversed(_KEYS)]
    order = np.lexsort(keys)
    table = table.take(pa.array(order))
    tps = sorted({part.tp for part in parts})
    if len(tps) == 1:
        yield tps[0], table
        return
    number_of = {tp: number for number, tp in enumerate(tps)}
    counts = [part.records.num_rows for part in parts]
    found = np.repeat([number_of[part.tp] for part in parts], counts)[order]
    bounds = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
    for start, end in pairwise(bounds):
        yield tps[found[start]], table.slice(start, end - start)


def _block(
    tp: TopicPartition,
    records: Any,
    sources: Mapping[TopicPartition, int],
    numbered: dict[TopicPartition, int],
) -> Block:
    keys, values, times = (
        records.column(name).to_pylist() for name in ("key", "value", "timestamp")
    )
    orders = Orders(*(np.asarray(records.column(name)) for name in ("mts", "src", "off")))
    count = len(keys)
    offsets: Iterable[int]
    if tp in sources:
        offsets = records.column("off").to_pylist()
    else:
        first = numbered.get(tp, 0)
        numbered[tp] = first + count
        offsets = range(first, first + count)
    headers = _headers(records.column("headers"))
    rows = zip(repeat(tp, count), offsets, keys, values, times, headers, strict=True)
    return Block(list(map(SyntheticRecord, rows)), orders)


def _headers(column: Any) -> Iterable[Any]:
    if column.null_count == len(column):
        return repeat(None, len(column))
    return [
        found and [(pair["name"], pair["value"]) for pair in found] for found in column.to_pylist()
    ]
