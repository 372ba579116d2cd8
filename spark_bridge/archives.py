"""History that comes from a DataFrame instead of from Kafka: Parquet, CSV, Delta, whatever it is.

The columns are ``key``, ``value`` (bytes or text) and ``timestamp`` (milliseconds since 1970, or a
timestamp), and, where the archive has them, ``partition``, ``offset`` and ``headers``. Where the
archive ends and Kafka goes on must be known to the record: it follows from the offsets, or the
caller says it. Without offsets, records are in the order of their times, then of the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from spark_bridge.archive_set import Cutover
from spark_bridge.errors import BackfillError, CannotBackfillError, HistoryGapError
from spark_bridge.job import Application, Archived, Job
from spark_bridge.murmur import partitions_of_keys
from spark_bridge.outputs import Row
from spark_bridge.packs import (
    HEADERS,
    PACK_DDL,
    RECORD,
    Label,
    packed_note,
    packed_records,
    packs_to_arrow,
)
from spark_bridge.planning import HistoryAdmin
from streams.clients import TopicPartition
from topology.operators.source import stampers

__all__ = ["Archive", "cuts_of", "numbered", "open_archive"]

UNNUMBERED = -(1 << 60)
"""From where records without an offset are counted: before every offset of Kafka."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The history of one topic.

    Args:
        topic: its name.
        frame: topic, partition, offset, key, value, timestamp and headers, in the columns' own
            order, and ``row``, which orders rows without an offset.
        has_offsets: whether the archive knows them.
    """

    topic: str
    frame: Any
    has_offsets: bool


def open_archive(topic: str, frame: Any, partitions: int) -> Archive:
    """Look at the columns of an archive, and give each record its partition.

    Args:
        topic: that the records are of.
        frame: the DataFrame.
        partitions: of the topic.

    Raises:
        CannotBackfillError: a column is missing, or of a type that it cannot have.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    names = set(frame.columns)
    missing = sorted({"key", "value", "timestamp"} - names)
    if missing:
        raise CannotBackfillError(
            f"the archive of {topic} has no column {', '.join(missing)}; it needs key, value and "
            "timestamp, and takes partition, offset and headers"
        )
    if "offset" in names and "partition" not in names:
        raise CannotBackfillError(
            f"the archive of {topic} has offsets and no partitions, which say nothing alone"
        )
    kinds = dict(frame.dtypes)
    time = F.col("timestamp")
    if kinds["timestamp"] == "timestamp":
        time = F.unix_millis(time)
    elif kinds["timestamp"] not in ("bigint", "int"):
        raise CannotBackfillError(
            f"the timestamp of the archive of {topic} is of type {kinds['timestamp']}; it must be "
            "a long of milliseconds since 1970, or a timestamp"
        )
    # Directly over the files, where it depends on nothing but the files.
    frame = frame.withColumn("row", F.monotonically_increasing_id())
    frame = frame.select(
        F.lit(topic).alias("topic"),
        (F.col("partition") if "partition" in names else F.lit(None))
        .cast("int")
        .alias("partition"),
        (F.col("offset") if "offset" in names else F.lit(None)).cast("long").alias("offset"),
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        time.cast("long").alias("timestamp"),
        _headers(topic, kinds.get("headers")).alias("headers"),
        F.col("row"),
    )
    if "partition" not in names:
        frame = frame.mapInArrow(_Partitioned(partitions), frame.schema)
    return Archive(topic, frame, "offset" in names)


def _headers(topic: str, kind: str | None) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    wanted = "array<struct<name:string,value:binary>>"
    if kind is None:
        return F.lit(None).cast(wanted)
    # Spark's own connector calls the name of a header its key.
    if kind in (wanted, "array<struct<key:string,value:binary>>"):
        return F.col("headers").cast(wanted)
    raise CannotBackfillError(
        f"the headers of the archive of {topic} are of type {kind}; they must be of {wanted}"
    )


class _Partitioned:
    """Puts each record where Kafka's producers do, those without a key by their row."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column("key")
            found = partitions_of_keys(keys, self._partitions)
            if keys.null_count:
                rows = np.asarray(batch.column("row")) % self._partitions
                found = np.where(np.asarray(keys.is_null()), rows, found).astype(np.int32)
            place = batch.schema.get_field_index("partition")
            yield batch.set_column(place, "partition", pa.array(found, pa.int32()))


def cuts_of(
    archive: Archive, partitions: int, admin: HistoryAdmin, cutover: Cutover | None
) -> dict[TopicPartition, int]:
    """Find out where Kafka goes on behind an archive, for each partition.

    Raises:
        HistoryGapError: it does not say so itself and nobody else does, or records in between are
            nowhere any more.
    """
    from pyspark.sql import functions as F  # noqa: N812

    places = [TopicPartition(archive.topic, p) for p in range(partitions)]
    if isinstance(cutover, datetime):
        if cutover.tzinfo is None:
            raise CannotBackfillError("cutover= is a time without a time zone; give it one")
        found = admin.offsets_at(places, int(cutover.timestamp() * 1000))
        ends = admin.stable_offsets(places)
        return {p: ends[p] if at is None else min(at, ends[p]) for p, at in found.items()}
    if cutover is not None:
        given = {TopicPartition(t, p): int(at) for (t, p), at in cutover.items()}
        unsaid = [place for place in places if place not in given]
        if unsaid:
            raise HistoryGapError(
                f"cutover= does not say where Kafka goes on in {', '.join(map(str, unsaid))}"
            )
        return {place: given[place] for place in places}
    if not archive.has_offsets:
        raise HistoryGapError(
            f"the archive of {archive.topic} has no offsets, so nothing says which record of the "
            "topic comes next; give cutover= as offsets or as a time, or an archive with the "
            "columns partition and offset"
        )
    rows = archive.frame.groupBy("partition").agg(F.max("offset").alias("last")).collect()
    cuts = {TopicPartition(archive.topic, row["partition"]): row["last"] + 1 for row in rows}
    beyond = sorted(cuts.keys() - set(places))
    if beyond:
        raise CannotBackfillError(
            f"the archive has records of {', '.join(map(str, beyond))}, and the topic has "
            f"{partitions} partitions"
        )
    starts = admin.start_offsets(places)
    for place in places:
        if place not in cuts:
            if starts[place] > 0:
                raise HistoryGapError(
                    f"the archive has nothing of {place}, and Kafka has the records from "
                    f"{starts[place]} on: those before are nowhere; bring the archive up to date"
                )
            cuts[place] = 0
    return cuts


def first_left_out(
    archive: Archive, cuts: Mapping[TopicPartition, int], timestamp_ms: int
) -> tuple[TopicPartition, int] | None:
    """Look for a record of an archive that is not older than a time, and would be read.

    Args:
        archive: the archive.
        cuts: where what is read of it ends.
        timestamp_ms: the time, in milliseconds since 1970.

    Returns:
        Partition and time of one, or None where there is none.
    """
    from pyspark.sql import functions as F  # noqa: N812

    read = _before(archive, cuts).where(F.col("timestamp") >= timestamp_ms)
    for row in read.select("partition", "timestamp").limit(1).collect():
        return TopicPartition(archive.topic, row["partition"]), row["timestamp"]
    return None


def _before(archive: Archive, cuts: Mapping[TopicPartition, int]) -> Any:
    """The records of an archive before some offsets, if it has offsets."""
    from pyspark.sql import functions as F  # noqa: N812

    if not archive.has_offsets:
        return archive.frame
    kept = F.lit(False)
    for place, cut in cuts.items():
        if place.topic == archive.topic:
            kept = kept | ((F.col("partition") == place.partition) & (F.col("offset") < cut))
    return archive.frame.where(kept)


def numbered(
    archive: Archive, partitions: int, cuts: Mapping[TopicPartition, int], job: Job
) -> tuple[Any, dict[TopicPartition, Archived]]:
    """Return an archive's records as packs, and what is known of each partition.

    Runs through the archive once; what comes out is kept on the executors' disks.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    frame = _before(archive, cuts)
    order = ["partition", "offset"] if archive.has_offsets else ["partition", "timestamp", "row"]
    rows = (
        frame.repartitionById(partitions, F.col("partition"))
        .sortWithinPartitions(*order)
        .mapInArrow(_Numbered(job, archive.topic), PACK_DDL)
        .persist(StorageLevel.DISK_ONLY)
    )
    found = [json.loads(bytes(row["data"])) for row in rows.where("kind = 'stats'").collect()]
    known = {
        TopicPartition(archive.topic, one["partition"]): Archived(one["first"], one["largest"])
        for one in found
    }
    return rows, known


class _Numbered:
    """Gives the records of one partition, which come in their order, the order of a stage."""

    def __init__(self, job: Job, topic: str) -> None:
        self._job = job
        self._topic = topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        application, plan = self._job.open()
        make_stamper = _stamper_of(application, self._topic, plan.now_ms)
        sources = {place: i for i, place in enumerate(plan.inputs)}
        largest, previous, count, stamper = -1, -(1 << 62), 0, None
        place, first = None, 0
        for batch in batches:
            if not batch.num_rows:
                continue
            place = TopicPartition(self._topic, batch.column("partition")[0].as_py())
            offsets = batch.column("offset")
            if offsets.null_count:
                offsets = pa.array(np.arange(count, count + batch.num_rows) + UNNUMBERED)
            numbers = np.asarray(offsets)
            first = first if count else int(numbers[0])
            before = np.concatenate(([previous], numbers[:-1]))
            if (twice := numbers[numbers <= before]).size:
                raise BackfillError(
                    f"the archive has offset {twice[0]} of {place} twice; each record must be in "
                    "it once"
                )
            previous = int(numbers[-1])
            times = np.asarray(batch.column("timestamp"))
            if make_stamper is not None:
                stamper = stamper or make_stamper(-1)
                times = np.array(
                    [m.timestamp()[1] for m in stamper.stamp(_messages(batch, place, numbers))]
                )
            mts = np.maximum.accumulate(np.concatenate(([largest], times)))[1:]
            largest = int(mts[-1])
            records = _records(batch, sources[place], numbers, mts)
            places = np.full(batch.num_rows, place.partition, np.int32)
            label = Label("record", -1, place.partition, self._topic)
            yield packs_to_arrow(list(packed_records(label, count, records, places)))
            count += batch.num_rows
        if place is not None:
            said = {"partition": place.partition, "first": first, "largest": largest}
            label = Label("stats", -1, place.partition, self._topic)
            yield packs_to_arrow([packed_note(label, json.dumps(said).encode())])


def _stamper_of(application: Application, topic: str, now_ms: int) -> Any:
    for plan in application.plans.values():
        if topic in plan.topics.sources:
            made = stampers(plan.program.sub_topology, plan.program.options, lambda: now_ms)
            return made.get(topic)
    return None


def _messages(batch: pa.RecordBatch, place: TopicPartition, numbers: Any) -> Iterator[Row]:
    names = ("key", "value", "timestamp", "headers")
    columns = [batch.column(name).to_pylist() for name in names]
    for number, key, value, timestamp, headers in zip(numbers.tolist(), *columns, strict=True):
        if headers is not None:
            headers = [(pair["name"], pair["value"]) for pair in headers]
        yield Row((place, number, key, value, timestamp, headers))


def _records(batch: pa.RecordBatch, source: int, numbers: Any, mts: Any) -> pa.RecordBatch:
    count = batch.num_rows
    columns = {
        "key": batch.column("key"),
        "value": batch.column("value"),
        "timestamp": batch.column("timestamp"),
        "headers": batch.column("headers").cast(HEADERS),
        "mts": pa.array(mts, pa.int64()),
        "src": pa.repeat(pa.scalar(source, pa.int32()), count),
        "off": pa.array(numbers, pa.int64()),
        "seq": pa.array(np.zeros(count, np.int32)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in RECORD.names], schema=RECORD)
