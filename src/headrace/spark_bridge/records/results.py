"""Results of a backfill: rows for topics, as Arrow batches in the driver and in executors.

Spark brings rows to the driver one Spark partition at a time, through its JVM and in several
copies, and a Spark partition has all rows of a task. Large partitions are therefore split first:
into runs of packs that are small relative to the heap, each a partition of its own, in the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.spark_bridge.executor_errors import without_record_texts
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.packs import RESULT, opened

HEAP_BYTES = 1 << 30
"""Spark's default, used if the size of the heap is unknown."""

PART_BYTES_MAX = 32 << 20
PARTS_IN_HEAP = 32
"""Two parts are in memory at a time, in about four copies each, next to Spark's own objects."""

_NUMBER = "__number"

Batches = Iterator[pa.RecordBatch]


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
        """Yield the rows as batches of `RESULT` in the driver, by Spark partition.

        They are ordered by stage, then by the partition of the task, then, within a task and kind,
        by `number`. If `largest` exceeds the limit for the heap, large partitions are split.
        """
        limit = part_bytes(self.heap_bytes)
        packs = self.packs
        if largest is not None and largest > limit:
            packs = split_packs(packs, limit)
        for pack in packs.toLocalIterator(prefetchPartitions=True):
            yield _rows_of(pack.asDict())

    def run(self, work: Callable[[Batches], Batches], ddl: str) -> list[Any]:
        """Run `work` in executors on batches of `RESULT`, and return its output rows."""
        found: list[Any] = self.packs.mapInArrow(_Unpacking(work), ddl).collect()
        return found


def heap_bytes(spark: Any) -> int:
    try:
        runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
        return int(runtime.maxMemory())
    except Exception:  # a client of Spark Connect has no JVM
        return HEAP_BYTES


def part_bytes(heap: int) -> int:
    return min(PART_BYTES_MAX, heap // PARTS_IN_HEAP)


def cuts_of(sizes: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """Return the number of the first pack of each part but the first.

    >>> cuts_of([(0, 4), (1, 4), (2, 4), (9, 20), (11, 1)], 8)
    [2, 9, 11]
    """
    cuts, room = [], limit
    for number, size in sizes:
        if size > room and room < limit:
            cuts.append(number)
            room = limit
        room -= size
    return cuts


def split_packs(packs: Any, limit: int) -> Any:
    """Repartition packs into Spark partitions of at most `limit` bytes, in the same order.

    `packs` must be persisted: otherwise, the cuts would not match the sizes that were measured.
    """
    from pyspark.sql import functions as F  # noqa: N812

    numbered = packs.withColumn(_NUMBER, F.monotonically_increasing_id())
    measured = numbered.select(_NUMBER, F.octet_length("data").alias("size"))
    sizes = [(row[_NUMBER], row["size"] or 0) for row in measured.collect()]
    cuts = cuts_of(sorted(sizes), limit)
    part = F.lit(0)
    for cut in cuts:
        part = part + F.when(F.col(_NUMBER) >= cut, 1).otherwise(0)
    parts = numbered.repartitionById(len(cuts) + 1, part.cast("int"))
    return parts.sortWithinPartitions(_NUMBER).drop(_NUMBER)


class _Unpacking:
    """Wrapper that decodes packs and passes their rows to `work`."""

    def __init__(self, work: Callable[[Batches], Batches]) -> None:
        self._work = work

    def __call__(self, batches: Batches) -> Batches:
        with without_record_texts(full=False):
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
    for name in ("kind", "sub", "d", "topic"):
        columns[name] = pa.repeat(pa.scalar(pack[name], RESULT.field(name).type), count)
    columns["number"] = pa.array(range(pack["number"], pack["number"] + count), pa.int64())
    return pa.RecordBatch.from_arrays([columns[name] for name in RESULT.names], schema=RESULT)
