"""How much of what was computed the driver holds at a time.

What Spark brings to the driver goes through its JVM a Spark partition at a time, in several copies,
and a Spark partition has all that a task made. So large ones are cut first: into runs of packs that
are small beside the heap, each a partition of its own, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEAP_BYTES = 1 << 30
"""Spark's default, where nothing says what it is."""

PART_BYTES_MAX = 32 << 20
PARTS_IN_HEAP = 32
"""Two of them are there at a time, in about four copies each, beside all else that Spark does."""

_PLACE = "__place"


def heap_bytes(spark: Any) -> int:
    """How large the heap of the driver's JVM may become."""
    try:
        runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
        return int(runtime.maxMemory())
    except Exception:  # a client of Spark Connect has no JVM
        return HEAP_BYTES


def part_bytes(heap: int) -> int:
    """How large a part may be that is brought to the driver."""
    return min(PART_BYTES_MAX, heap // PARTS_IN_HEAP)


def cuts_of(sizes: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """Where parts begin behind the first one.

    Args:
        sizes: place and bytes of each pack, in their order.
        limit: how large a part may be, unless one pack alone is larger.

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
    """The same rows in the same order, in Spark partitions that are not larger than a limit.

    Args:
        packs: a frame with the column ``data``, kept as it is, so that it is cut where it was
            measured.
        limit: in bytes.
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
