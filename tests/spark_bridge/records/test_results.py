"""What goes through Spark's driver, in parts that are small beside its heap."""

from __future__ import annotations

from typing import Any

from headrace.spark_bridge.records.results import heap_bytes, part_bytes, split_packs


def test_a_large_partition_is_cut_and_keeps_its_order(spark: Any) -> None:
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    ids = spark.range(0, 90, 1, 3)  # three partitions of thirty rows
    packs = ids.withColumn("data", F.repeat(F.lit("x"), (F.col("id") % 7).cast("int")))
    packs = packs.persist(StorageLevel.DISK_ONLY)
    cut = split_packs(packs, 20)
    sizes = cut.groupBy(F.spark_partition_id()).agg(F.sum(F.length("data"))).collect()
    assert len(sizes) > 10
    assert max(size for _, size in sizes) <= 20
    assert [row["id"] for row in cut.toLocalIterator()] == list(range(90))
    assert cut.columns == packs.columns
    packs.unpersist()


def test_a_part_is_small_beside_the_heap(spark: Any) -> None:
    heap = heap_bytes(spark)
    assert heap > 100 << 20
    assert heap / 40 < part_bytes(heap) <= heap / 32 or part_bytes(heap) == 32 << 20
    assert part_bytes(1 << 30) == 32 << 20
