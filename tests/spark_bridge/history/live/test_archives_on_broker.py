"""History that begins in files: where it ends, what is missing, and what Kafka goes on with."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import BackfillError, CannotBackfillError, HistoryGapError, backfill
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from tests.spark_bridge.support.handed import START_MS, Handed, line
from tests.spark_bridge.support.ways import hand_over_partitioned
from tests.support import kafka
from tests.support.topics import Topics

LINES = 40


class Archived(Handed):
    """Lines of which the first are history, and the others the live application's."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        super().__init__(topics, directory)
        self.write(LINES)
        self.ends_of_history = self.ends()
        self.write(LINES, live=True)
        self._directory = directory

    def ends(self) -> dict[TopicPartition, int]:
        found = kafka.ends(self.bootstrap, self.source)
        return {TopicPartition(self.source, p): end for p, end in found.items()}

    def archive(self, spark: Any) -> Any:
        """All records that the topic has, as files."""
        path = str(self._directory / "archive")
        options = {"topic": self.source, "bootstrap.servers": self.bootstrap, "compacted": "false"}
        spark.read.format("changelog").options(**options).load().write.parquet(path)
        return spark.read.parquet(path)

    def delete(self, until: dict[TopicPartition, int]) -> None:
        """Have the topic forget its first records."""
        GroupAdmin({"bootstrap.servers": self.bootstrap}, timeout_s=30).delete_records(until)

    def backfill(self, spark: Any, archive: Any, **more: Any) -> Any:
        source = None if archive is None else {self.source: archive}
        return backfill(self.topology, self.settings, spark=spark, source=source, **more)

    def history(self) -> Counter[str]:
        return Counter(word for n in range(LINES) for word in line(n).split())


@pytest.fixture
def archived(topics: Topics, tmp_path: Path) -> Archived:
    return Archived(topics, tmp_path)


TIME = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=LINES)
"""That of the first record that is not history."""


@pytest.mark.parametrize("until", ["offsets", "time"])
def test_an_archive_that_reaches_beyond_the_end_is_cut_there(
    spark: Any, archived: Archived, until: str
) -> None:
    """What is behind it is the live application's, from Kafka."""
    archive = archived.archive(spark)
    end: Any = archived.ends_of_history if until == "offsets" else TIME
    report = archived.backfill(spark, archive, until=end)
    assert report.plan.ends == archived.ends_of_history
    assert archived.state() == dict(archived.history())
    committed = archived.offsets()
    assert {
        TopicPartition(archived.source, p): at for p, at in committed.items()
    } == report.plan.ends
    archived.go_on_live()


def test_an_end_that_only_the_archive_has_is_refused(spark: Any, archived: Archived) -> None:
    """The live application could not go on from there."""
    archive = archived.archive(spark)
    archived.delete(archived.ends())
    with pytest.raises(CannotBackfillError, match="can continue"):
        archived.backfill(spark, archive, until=archived.ends_of_history, dry_run=True)
    with pytest.raises(CannotBackfillError, match=r"cannot read from Kafka.*later time"):
        archived.backfill(spark, archive, until=TIME, dry_run=True)
    archived.backfill(spark, archive, dry_run=True)


def test_an_archive_without_offsets_is_not_cut(spark: Any, archived: Archived) -> None:
    archive = archived.archive(spark).drop("offset")
    with pytest.raises(HistoryGapError, match="Give cutover= as offsets or as a time"):
        archived.backfill(spark, archive, dry_run=True)
    cutover = archived.ends()
    with pytest.raises(CannotBackfillError, match="has no offsets to cut it at"):
        archived.backfill(
            spark, archive, cutover=cutover, until=archived.ends_of_history, dry_run=True
        )
    archived.backfill(spark, archive, cutover=cutover, dry_run=True)


def test_a_gap_between_archive_and_topic_is_refused(spark: Any, archived: Archived) -> None:
    archive = archived.archive(spark)
    ends = archived.ends()
    archived.write(10, live=True)
    assert archived.backfill(spark, archive, dry_run=True).plan.starts == ends
    archived.delete({place: end + 1 for place, end in ends.items()})
    with pytest.raises(CannotBackfillError, match="between the archive and Kafka are lost"):
        archived.backfill(spark, archive, dry_run=True)
    (one, other) = ends
    with pytest.raises(HistoryGapError, match=rf"lost \({other}\): the archive has no records"):
        archived.backfill(spark, archive.where(f"partition = {one.partition}"), dry_run=True)


def test_an_archive_that_has_a_record_twice_is_refused(spark: Any, archived: Archived) -> None:
    archive = archived.archive(spark)
    twice = archive.unionAll(archive.where("offset = 3"))
    with pytest.raises(BackfillError, match=r"an offset twice .*offset 3\)"):
        archived.backfill(spark, twice)
    archived.check_empty()


def test_an_attempt_goes_on_with_the_archives_that_it_was_planned_with(
    spark: Any, archived: Archived
) -> None:
    """Without them it would read what is in Kafka alone, and call it the whole history."""
    archive = archived.archive(spark)
    archived.delete(archived.ends_of_history)

    class Stopped(Exception):  # noqa: N818
        """Ends the first driver."""

    def stop(step: str) -> None:
        if step == "handover_opened":
            raise Stopped

    computed = archived.compute(spark, "bf-1", source={archived.source: archive})
    with pytest.raises(Stopped):
        hand_over_partitioned(computed.results, archived.application, probe=stop)
    computed.release()
    with pytest.raises(CannotBackfillError, match=f"planned with archives of {archived.source}"):
        archived.backfill(spark, None, id="bf-1")
    report = archived.backfill(spark, archive, id="bf-1", order="exact")
    assert report.plan == computed.plan
    archived._live = []
    archived.check_recount()
    archived.go_on_live()


def test_a_source_that_is_no_archive_of_an_input_is_refused(spark: Any, archived: Archived) -> None:
    nothing: Any = "connector"
    for source, why in (
        (nothing, "must map topics to DataFrames"),
        ({archived.source: "lines.parquet"}, "not to a str .*spark.read.parquet"),
        ({"lines": None}, f"does not read .lines.. Use topics of {archived.source}"),
        ({archived.source: spark.range(3)}, "has no column key, timestamp, value"),
    ):
        with pytest.raises(CannotBackfillError, match=why):
            backfill(archived.topology, archived.settings, spark=spark, source=source)


def test_a_plan_reports_what_the_archive_has_and_an_empty_one_is_refused(
    spark: Any, archived: Archived
) -> None:
    from pyspark.sql.functions import expr

    archive = archived.archive(spark).drop("offset", "partition")
    late = archive.withColumn("timestamp", expr("timestamp + interval 40 days"))
    both = archive.unionByName(late)
    cutover = (TIME + timedelta(days=90)).isoformat()
    plan = archived.backfill(spark, both, cutover=cutover, dry_run=True)
    (report,) = plan.archives
    assert (report.topic, report.rows, report.partitions) == (archived.source, 4 * LINES, 2)
    first = datetime.fromtimestamp(START_MS / 1000, UTC).date()
    assert report.longest_gap == (first + timedelta(days=1), first + timedelta(days=39))
    with pytest.raises(CannotBackfillError, match=f"archive of {archived.source} has no rows"):
        archived.backfill(spark, archive.limit(0), cutover=cutover, dry_run=True)
