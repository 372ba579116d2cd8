"""Archives whose records would be left out, counted twice, or put into the wrong partition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import CannotBackfillError, HistoryGapError, backfill
from headrace.spark_bridge.records.packs import opened
from headrace.spark_bridge.stages import Computation
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology import StreamsBuilder, serdes
from tests.spark_bridge.support.handed import START_MS, Handed
from tests.support import kafka
from tests.support.live import settings_of
from tests.support.topics import Topics


class Kept(Handed):
    """Lines that are in files, too."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        super().__init__(topics, directory)
        self._directory = directory

    def archive(self, spark: Any) -> Any:
        """All that the topic has, as files."""
        path = str(self._directory / "archive")
        options = {"topic": self.source, "bootstrap.servers": self.bootstrap, "compacted": "false"}
        spark.read.format("changelog").options(**options).load().write.parquet(path)
        return spark.read.parquet(path)

    def ends(self) -> dict[TopicPartition, int]:
        found = kafka.ends(self.bootstrap, self.source)
        return {TopicPartition(self.source, p): end for p, end in found.items()}

    def delete(self) -> None:
        """Have the topic forget everything."""
        GroupAdmin({"bootstrap.servers": self.bootstrap}, timeout_s=30).delete_records(self.ends())

    def planned(self, spark: Any, archive: Any, **more: Any) -> Any:
        return backfill(
            self.topology,
            self.settings,
            spark=spark,
            source={self.source: archive},
            dry_run=True,
            **more,
        ).plan


@pytest.fixture
def kept(topics: Topics, tmp_path: Path) -> Kept:
    found = Kept(topics, tmp_path)
    found.write(40)
    return found


def test_records_that_say_no_place_or_time_are_refused(spark: Any, kept: Kept) -> None:
    """Without a comparison that a null can pass, Spark leaves them out and says nothing."""
    from pyspark.sql import functions as F  # noqa: N812

    archive = kept.archive(spark)
    some = F.crc32("key") % 5 == 0
    count = archive.where(some).count()
    assert count
    for column in ("offset", "partition", "timestamp"):
        holed = archive.withColumn(column, F.when(~some, F.col(column)))
        said = rf"{count} records of the archive have no {column} \({kept.source}\)"
        with pytest.raises(CannotBackfillError, match=said):
            kept.planned(spark, holed)
    wide = archive.withColumn("partition", F.when(some, 7).otherwise(F.col("partition")))
    cutover = {TopicPartition(kept.source, p): 0 for p in range(2)}
    for foreign in (wide, wide.drop("offset")):
        with pytest.raises(CannotBackfillError, match=f"has {count} records of partition 7"):
            kept.planned(spark, foreign, cutover=cutover)


def test_records_behind_the_time_of_the_cutover_are_refused_without_offsets(
    spark: Any, kept: Kept
) -> None:
    """They are in Kafka, too, and would count twice."""
    archive = kept.archive(spark).drop("offset")
    time = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=20)
    with pytest.raises(CannotBackfillError, match="count twice"):
        kept.planned(spark, archive, cutover=time)
    kept.planned(spark, archive.where(f"unix_millis(timestamp) < {START_MS + 20}"), cutover=time)


def test_records_that_only_kafka_has_before_the_cutover_are_refused(spark: Any, kept: Kept) -> None:
    archive = kept.archive(spark)
    ends = kept.ends()
    short = archive.where("offset < 5")
    for one in (short, short.drop("offset")):
        with pytest.raises(HistoryGapError, match="cutover= skips"):
            kept.planned(spark, one, cutover=ends)
    with pytest.raises(HistoryGapError, match="archive from 5"):
        kept.planned(spark, archive.where("offset >= 5"))


def test_an_attempt_with_another_archive_is_refused(spark: Any, kept: Kept) -> None:
    archive = kept.archive(spark)
    computed = kept.compute(spark, "bf-1", source={kept.source: archive})
    computed.release()
    shorter = archive.where("partition = 0 or offset <> 3")
    with pytest.raises(CannotBackfillError, match=rf"{kept.source}-1.*Give the same archive"):
        kept.compute(spark, "bf-1", source={kept.source: shorter}, plan=computed.plan)
    # What lies behind the plan is the live application's.
    kept.write(3, live=True)
    kept.compute(spark, "bf-1", source={kept.source: archive}, plan=computed.plan).release()


def test_an_archive_of_a_topic_that_is_a_changelog_too_is_refused(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    """The live application restores from the topic, which does not have what the archive has."""
    topic = topics.create("table", config={"cleanup.policy": "compact"})
    builder = StreamsBuilder()
    builder.table(topic, key=serdes.string, value=serdes.string, store="table")
    settings = settings_of(topics, tmp_path)
    reused = settings | {"topology.optimization": "reuse.ktable.source.topics"}
    archive = spark.createDataFrame(
        [("k", "v", START_MS)], "key string, value string, timestamp long"
    )
    source, cutover = {topic: archive}, {TopicPartition(topic, 0): 0}
    with pytest.raises(CannotBackfillError, match=r"table.*reuse\.ktable\.source\.topics"):
        backfill(builder.build(), reused, spark=spark, source=source, cutover=cutover, dry_run=True)
    backfill(builder.build(), settings, spark=spark, source=source, cutover=cutover, dry_run=True)


def rows_of(computed: Computation) -> dict[int, list[Any]]:
    """Key, value and time of an archive's records by partition, in their order."""
    found: dict[int, list[Any]] = {}
    (frame,) = computed.archives
    packs = frame.where("kind = 'record'").orderBy("partition", "number").collect()
    for pack in packs:
        rows = opened(bytes(pack["data"])).select(["key", "value", "timestamp"]).to_pylist()
        found.setdefault(pack["partition"], []).extend(rows)
    computed.release()
    return found


def test_records_without_places_have_the_same_ones_however_spark_divides_them(
    spark: Any, kept: Kept, tmp_path: Path
) -> None:
    """A second attempt may have more cores, and so other divisions of the same files."""
    rows = [(None if n % 2 else f"{n % 5}", f"v{n}", START_MS + n // 8) for n in range(60)]
    frame = spark.createDataFrame(rows, "key string, value string, timestamp long")
    files = str(tmp_path / "files")
    frame.repartition(3, "value").write.csv(files, header=True)
    kept.delete()
    cutover = kept.ends()
    parts = "spark.sql.files.maxPartitionBytes"
    reader = spark.read.option("header", True).schema("key string, value string, timestamp long")
    before = spark.conf.get(parts)
    found = []
    for size, one in (("256", frame), ("16m", frame.repartition(5, "value"))):
        spark.conf.set(parts, size)
        try:
            for archive in (one, reader.csv(files)):
                given = {kept.source: archive}
                found.append(rows_of(kept.compute(spark, "x", source=given, cutover=cutover)))
        finally:
            spark.conf.set(parts, before)
    assert len(found[0]) == 2
    assert sum(map(len, found[0].values())) == len(rows)
    assert found[0] == found[2]
    assert found[1] == found[3]
