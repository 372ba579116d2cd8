"""Limits for the size of computed rows that the driver holds in memory.

Spark brings rows to the driver one Spark partition at a time, through its JVM and in several
copies, and a Spark partition has all rows of a task. Large partitions are therefore split first:
into runs of packs that are small relative to the heap, each a partition of its own, in the same
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEAP_BYTES = 1 << 30
"""Spark's default, used if the size of the heap is unknown."""

PART_BYTES_MAX = 32 << 20
PARTS_IN_HEAP = 32
"""Two parts are in memory at a time, in about four copies each, next to Spark's own objects."""

_PLACE = "__place"


def heap_bytes(spark: Any) -> int:
    try:
        runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
        return int(runtime.maxMemory())
    except Exception:  # a client of Spark Connect has no JVM
        return HEAP_BYTES


def part_bytes(heap: int) -> int:
    return min(PART_BYTES_MAX, heap // PARTS_IN_HEAP)


def cuts_of(sizes: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """Return the index of the first pack of each part but the first.

    >>> cuts_of([(0, 4), (1, 4), (2, 4), (9, 20), (11, 1)], 8)
    [2, 9, 11]
    """
    cuts, room = [], limit
    for place, size in sizes:
        if size > room and room < limit:
            cuts.append(place)
            room = limit
        room -= size
    return cuts


def in_parts(packs: Any, limit: int) -> Any:
    """Repartition packs into Spark partitions of at most `limit` bytes, in the same order.

    `packs` must be persisted: otherwise, the cuts would not match the sizes that were measured.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    placed = packs.withColumn(_PLACE, F.monotonically_increasing_id())
    measured = placed.select(_PLACE, F.octet_length("data").alias("size"))
    sizes = [(row[_PLACE], row["size"] or 0) for row in measured.collect()]
    cuts = cuts_of(sorted(sizes), limit)
    part = F.lit(0)
    for cut in cuts:
        part = part + F.when(F.col(_PLACE) >= cut, 1).otherwise(0)
    cut_up = placed.repartitionById(len(cuts) + 1, part.cast("int"))
    return cut_up.sortWithinPartitions(_PLACE).drop(_PLACE)
