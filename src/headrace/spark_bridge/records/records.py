"""What a backfill hands over: rows for topics, as Arrow batches in the driver and in executors."""

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
"""The rows that are handed over; `number` counts those of a task and kind."""

Batches = Iterator[pa.RecordBatch]


class ResultRow(NamedTuple):
    """One row of `Results` (see `RESULT`); `headers` are pairs, or None where there are none."""

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
    """What a whole backfill computed, before it is handed over.

    Args:
        packs: a Spark DataFrame of `headrace.spark_bridge.records.packs.PACK`, lazy and persisted;
            the packs of one task are in one Spark partition, those of a kind in the order of
            `number`.
    """

    packs: Any
    plan: BackfillPlan

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How many rows there are of each kind and topic; runs the stages that have not run."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        rows = self.packs.groupBy("kind", "topic").agg(F.sum("rows").alias("rows")).collect()
        return {(row["kind"], row["topic"]): row["rows"] for row in rows}

    @property
    def heap_bytes(self) -> int:
        """How large the heap is that all goes through on its way to the driver."""
        return heap_bytes(self.packs.sparkSession)

    def batches(self, largest: int | None = None) -> Batches:
        """Yield the rows as Arrow batches in the driver, one Spark partition after the other.

        Stages come in their order, within them tasks by partition, within a task rows of a kind by
        `number`.

        Args:
            largest: how many bytes the largest Spark partition has; what is large for the heap is
                cut.
        """
        limit = part_bytes(self.heap_bytes)
        packs = self.packs
        if largest is not None and largest > limit:
            packs = in_parts(packs, limit)
        for pack in packs.toLocalIterator(prefetchPartitions=True):
            yield _rows_of(pack.asDict())

    def rows(self) -> Iterator[ResultRow]:
        """Yield the rows in the driver, in the order of `batches`."""
        for batch in self.batches():
            yield from result_rows(batch)

    def run(self, work: Callable[[Batches], Batches], ddl: str) -> list[Any]:
        """Have executors work on the rows of each Spark partition; returns the rows they yield.

        Args:
            work: takes batches of `RESULT`.
        """
        found: list[Any] = self.packs.mapInArrow(_Unpacking(work), ddl).collect()
        return found


class _Unpacking:
    """Opens packs for what works on their rows."""

    def __init__(self, work: Callable[[Batches], Batches]) -> None:
        self._work = work

    def __call__(self, batches: Batches) -> Batches:
        with sealed(full=False):
            yield from self._work(unpacked(batches))


def unpacked(batches: Batches) -> Batches:
    """Yield the rows of packs, as batches of `RESULT`, a pack at a time."""
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
