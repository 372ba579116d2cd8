"""Results of a backfill: rows for topics, as Arrow batches in the driver and in executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.spark_bridge.driver_memory import heap_bytes, in_parts, part_bytes
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.executor_errors import sealed
from headrace.spark_bridge.records.packs import HEADERS, opened

RESULT = pa.schema(
    [
        pa.field("sub", pa.int32()),
        pa.field("d", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("number", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("headers", HEADERS),
    ]
)
"""Schema of the rows that are handed over; `number` counts the rows of a task and kind."""

Batches = Iterator[pa.RecordBatch]


class ResultRow(NamedTuple):
    """Row of `Results` (see `RESULT`); `headers` are pairs, or None if the record has none."""

    sub: int
    d: int
    kind: str
    topic: str
    partition: int
    number: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class Results:
    """Results of all stages of a backfill, before the handover.

    Args:
        packs: a Spark DataFrame of `headrace.spark_bridge.records.packs.PACK`, lazy and persisted.
            The packs of a task are in one Spark partition, the packs of a kind in the order of
            `number`.
    """

    packs: Any
    plan: BackfillPlan

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Number of rows by kind and topic. Reading it runs the stages that have not run."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        rows = self.packs.groupBy("kind", "topic").agg(F.sum("rows").alias("rows")).collect()
        return {(row["kind"], row["topic"]): row["rows"] for row in rows}

    @property
    def heap_bytes(self) -> int:
        return heap_bytes(self.packs.sparkSession)

    def batches(self, largest: int | None = None) -> Batches:
        """Yield the rows as Arrow batches in the driver, by Spark partition.

        They are ordered by stage, then by the partition of the task, then, within a task and kind,
        by `number`. If `largest` exceeds the limit for the heap, large partitions are split.
        """
        limit = part_bytes(self.heap_bytes)
        packs = self.packs
        if largest is not None and largest > limit:
            packs = in_parts(packs, limit)
        for pack in packs.toLocalIterator(prefetchPartitions=True):
            yield _rows_of(pack.asDict())

    def rows(self) -> Iterator[ResultRow]:
        for batch in self.batches():
            yield from result_rows(batch)

    def run(self, work: Callable[[Batches], Batches], ddl: str) -> list[Any]:
        """Run `work` in executors on batches of `RESULT`, and return its output rows."""
        found: list[Any] = self.packs.mapInArrow(_Unpacking(work), ddl).collect()
        return found


class _Unpacking:
    """Wrapper that decodes packs and passes their rows to `work`."""

    def __init__(self, work: Callable[[Batches], Batches]) -> None:
        self._work = work

    def __call__(self, batches: Batches) -> Batches:
        with sealed(full=False):
            yield from self._work(unpacked(batches))


def unpacked(batches: Batches) -> Batches:
    """Yield the rows of packs as batches of `RESULT`, a batch per pack."""
    for batch in batches:
        labels = batch.drop_columns(["data"]).to_pylist()
        for label, data in zip(labels, batch.column("data"), strict=True):
            yield _rows_of({**label, "data": data.as_buffer()})


def _rows_of(pack: dict[str, Any]) -> pa.RecordBatch:
    rows = opened(pack["data"])
    count = rows.num_rows
    columns = {name: rows.column(name) for name in rows.schema.names}
    for name in ("sub", "d", "kind", "topic"):
        columns[name] = pa.repeat(pa.scalar(pack[name], RESULT.field(name).type), count)
    columns["number"] = pa.array(range(pack["number"], pack["number"] + count), pa.int64())
    return pa.RecordBatch.from_arrays([columns[name] for name in RESULT.names], schema=RESULT)


def result_rows(batch: pa.RecordBatch) -> Iterator[ResultRow]:
    """Yield the rows of a batch of `RESULT`.

    >>> columns = [[0], [1], ["sink"], ["out"], [-1], [0], [b"k"], [None], [5]]
    >>> arrays = [pa.array(c, f.type) for c, f in zip(columns, RESULT)]
    >>> headers = pa.array([[{"name": "h", "value": b"1"}]], HEADERS)
    >>> batch = pa.RecordBatch.from_arrays([*arrays, headers], schema=RESULT)
    >>> next(result_rows(batch)).headers
    [('h', b'1')]
    """
    columns = [batch.column(name).to_pylist() for name in RESULT.names]
    headers = columns[-1]
    columns[-1] = [h and [(pair["name"], pair["value"]) for pair in h] for h in headers]
    for row in zip(*columns, strict=True):
        yield ResultRow(*row)
