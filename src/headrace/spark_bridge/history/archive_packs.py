"""Records of an archive as packs, in the order in which a task reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.history.archive_facts import ArchiveFacts, ArchiveStatistics, facts_of
from headrace.spark_bridge.plan.job import Archived, CompiledApplication, StageJob
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.executor_errors import sealed
from headrace.spark_bridge.records.murmur import partitions_of_keys
from headrace.spark_bridge.records.outputs import SyntheticRecord
from headrace.spark_bridge.records.packs import (
    HEADERS,
    PACK_DDL,
    RECORD,
    Label,
    batches_of,
    packed_note,
    packed_records,
    packs_to_arrow,
)
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology.compile.source import stampers

# History from a DataFrame instead of from Kafka: Parquet, CSV, Delta or any other format.
#
# The columns are ``key``, ``value`` (bytes or text) and ``timestamp`` (milliseconds since 1970, or
# a timestamp), and optionally ``partition``, ``offset`` and ``headers``. The cut-over from archive
# to Kafka must be exact: it follows from the offsets, or the caller gives it. Without offsets,
# records are ordered by timestamp, then by file name and row within the file, or by content if
# Spark knows of no files. A second attempt therefore reads them in the same order, however Spark
# splits the files.


AMONG_EQUALS = ("file", "row", "content")
"""Columns that sort records with equal timestamps, before their keys and values."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Archived history of a topic.

    Args:
        given: topic, partition, offset, key, value, timestamp and headers, null if the archive
            lacks the column; without offsets, also the columns that sort records with equal
            timestamps.
        frame: the same, with the partition of each record filled in.
    """

    topic: str
    partitions: int
    given: Any
    frame: Any
    has_partitions: bool
    has_offsets: bool


def open_archive(topic: str, frame: Any, partitions: int) -> Archive:
    """Check the columns of an archive, and assign each record a partition."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    names = set(frame.columns)
    missing = sorted({"key", "value", "timestamp"} - names)
    if missing:
        raise CannotBackfillError(
            f"the archive of {topic} has no column {', '.join(missing)}, and has "
            f"{', '.join(map(repr, frame.columns))}; it needs key, value and timestamp, and takes "
            "partition, offset and headers"
        )
    if "offset" in names and "partition" not in names:
        raise CannotBackfillError(
            f"the archive of {topic} has offsets and no partitions, which say nothing alone"
        )
    kinds = dict(frame.dtypes)
    for name in ("key", "value"):
        if kinds[name] not in ("binary", "string", "void"):
            raise CannotBackfillError(
                f"the {name} of the archive of {topic} is of type {kinds[name]}; it must be the "
                "bytes or the text that was in the topic, such as to_json of a struct, and CSV is "
                "not to be read with inferSchema"
            )
    time = F.col("timestamp")
    if kinds["timestamp"] == "timestamp":
        time = F.unix_millis(time)
    elif kinds["timestamp"] not in ("bigint", "int"):
        raise CannotBackfillError(
            f"the timestamp of the archive of {topic} is of type {kinds['timestamp']}; it must be "
            "a long of milliseconds since 1970, or a timestamp"
        )
    given = _among_equals(frame) if "offset" not in names else frame
    given = given.select(
        F.lit(topic).alias("topic"),
        (F.col("partition") if "partition" in names else F.lit(None))
        .cast("int")
        .alias("partition"),
        (F.col("offset") if "offset" in names else F.lit(None)).cast("long").alias("offset"),
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        time.cast("long").alias("timestamp"),
        _headers(topic, kinds.get("headers")).alias("headers"),
        *(F.col(name) for name in AMONG_EQUALS if "offset" not in names),
    )
    placed = given
    if "partition" not in names:
        placed = given.mapInArrow(_Partitioned(partitions), given.schema)
    return Archive(topic, partitions, given, placed, "partition" in names, "offset" in names)


def _among_equals(frame: Any) -> Any:
    """Add the columns that sort records with equal timestamps.

    They are added directly to the scan of the files, because there they depend only on the files.
    The ids increase within a file, however Spark splits it. They carry no order across files, or
    for rows that do not come from a file.
    """
    from pyspark.sql import functions as F  # noqa: N812

    whole = [F.col(name) for name in ("key", "value", "timestamp")]
    file = F.input_file_name()
    return frame.withColumns(
        {
            "content": F.xxhash64(*whole),
            "file": file,
            "row": F.when(file != "", F.monotonically_increasing_id()),
        }
    )


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
    """Function that assigns partitions as Kafka's producers do; records without a key by their
    content.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column("key")
            found = partitions_of_keys(keys, self._partitions)
            if keys.null_count:
                tps = np.asarray(batch.column("content")) % self._partitions
                found = np.where(np.asarray(keys.is_null()), tps, found).astype(np.int32)
            tp = batch.schema.get_field_index("partition")
            yield batch.set_column(tp, "partition", pa.array(found, pa.int32()))


def look_into(archive: Archive, cuts: Mapping[TopicPartition, int] | None = None) -> ArchiveFacts:
    """Count an archive in a single pass, up to `cuts` if it has offsets."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = archive.given
    if cuts is not None and archive.has_offsets:
        # Records without a partition or offset stay, so that they are reported.
        known = F.col("partition").isNotNull() & F.col("offset").isNotNull()
        frame = frame.where(~known | _is_before(archive, cuts))
    rows = frame.groupBy("partition").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("offset").isNull()).alias("no_offset"),
        F.count_if(F.col("timestamp").isNull()).alias("no_time"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min("timestamp").alias("earliest"),
        F.max("timestamp").alias("latest"),
    )
    return facts_of(
        archive.topic,
        [ArchiveStatistics(**row.asDict()) for row in rows.collect()],
        archive.partitions,
        has_partitions=archive.has_partitions,
        has_offsets=archive.has_offsets,
    )


def before(archive: Archive, cuts: Mapping[TopicPartition, int]) -> Any:
    """Return the records of an archive before given offsets; all records without offsets."""
    return archive.frame.where(_is_before(archive, cuts)) if archive.has_offsets else archive.frame


def _is_before(archive: Archive, cuts: Mapping[TopicPartition, int]) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    kept = F.lit(False)
    for tp, cut in cuts.items():
        if tp.topic == archive.topic:
            kept = kept | ((F.col("partition") == tp.partition) & (F.col("offset") < cut))
    return kept


UNNUMBERED = -(1 << 60)
"""First number of records without an offset: lower than every offset of Kafka."""


def numbered(
    archive: Archive, cuts: Mapping[TopicPartition, int], job: StageJob
) -> tuple[Any, dict[TopicPartition, Archived]]:
    """Read an archive before given offsets once, as packs that persist on the executors' disks."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    frame = before(archive, cuts)
    order = ["partition", "offset"]
    if not archive.has_offsets:
        order = ["partition", "timestamp", *AMONG_EQUALS, "key", "value", "headers"]
    rows = (
        frame.repartitionById(archive.partitions, F.col("partition"))
        .sortWithinPartitions(*order)
        .mapInArrow(_Numbered(job, archive.topic), PACK_DDL)
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        found = [json.loads(bytes(row["data"])) for row in rows.where("kind = 'stats'").collect()]
    except BaseException:
        with and_then(rows.unpersist, quietly=True):
            raise
    known = {
        TopicPartition(archive.topic, one["partition"]): Archived(one["first"], one["largest"])
        for one in found
    }
    return rows, known


class _Numbered:
    """Function that converts the sorted records of a partition to packs with their order."""

    def __init__(self, job: StageJob, topic: str) -> None:
        self._job = job
        self._topic = topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        application, plan = self._job.open()
        with sealed(full=application.config.log_errors == "full"):
            yield from self._numbered(application, plan, batches)

    def _numbered(
        self,
        application: CompiledApplication,
        plan: BackfillPlan,
        batches: Iterator[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        make_stamper = _stamper_of(application, self._topic, plan.now_ms)
        sources = {tp: i for i, tp in enumerate(plan.inputs)}
        largest, previous, count, stamper = -1, -(1 << 62), 0, None
        tp, first = None, 0
        for batch in batches:
            if not batch.num_rows:
                continue
            tp = self._place_of(batch, tp)
            offsets = batch.column("offset")
            if offsets.null_count:
                offsets = pa.array(np.arange(count, count + batch.num_rows) + UNNUMBERED)
            numbers = np.asarray(offsets)
            first = first if count else int(numbers[0])
            before = np.concatenate(([previous], numbers[:-1]))
            if (twice := numbers[numbers <= before]).size:
                raise BackfillError(
                    f"the archive has offset {twice[0]} of {tp} twice; each record must be in "
                    "it once"
                )
            previous = int(numbers[-1])
            times = np.asarray(batch.column("timestamp"))
            if make_stamper is not None:
                stamper = stamper or make_stamper(-1)
                times = np.array(
                    [m.timestamp()[1] for m in stamper.stamp(_messages(batch, tp, numbers))]
                )
            mts = np.maximum.accumulate(np.concatenate(([largest], times)))[1:]
            largest = int(mts[-1])
            records = _records(batch, sources[tp], numbers, mts)
            tps = np.full(batch.num_rows, tp.partition, np.int32)
            label = Label("record", -1, tp.partition, self._topic)
            yield from batches_of(packed_records(label, count, records, tps))
            count += batch.num_rows
        if tp is not None:
            said = {"partition": tp.partition, "first": first, "largest": largest}
            label = Label("stats", -1, tp.partition, self._topic)
            yield packs_to_arrow([packed_note(label, json.dumps(said).encode())])

    def _place_of(self, batch: pa.RecordBatch, before: TopicPartition | None) -> TopicPartition:
        """Return the partition of a batch, and check that all records so far belong to it."""
        ends = pc.min_max(batch.column("partition")).as_py()
        found = TopicPartition(self._topic, ends["min"])
        holes = batch.column("partition").null_count + batch.column("timestamp").null_count
        if holes or ends["max"] != found.partition or before not in (None, found):
            raise BackfillError(
                f"the archive of {self._topic} has changed while it was read: it has records "
                "without a place or a time, or of partitions that the topic does not have; let it "
                "be as it is"
            )
        return found


def _stamper_of(application: CompiledApplication, topic: str, now_ms: int) -> Any:
    for plan in application.plans.values():
        if topic in plan.topics.sources:
            made = stampers(plan.program.sub_topology, plan.program.options, lambda: now_ms)
            return made.get(topic)
    return None


def _messages(batch: pa.RecordBatch, tp: TopicPartition, numbers: Any) -> Iterator[SyntheticRecord]:
    names = ("key", "value", "timestamp", "headers")
    columns = [batch.column(name).to_pylist() for name in names]
    for number, key, value, timestamp, headers in zip(numbers.tolist(), *columns, strict=True):
        if headers is not None:
            headers = [(pair["name"], pair["value"]) for pair in headers]
        yield SyntheticRecord((tp, number, key, value, timestamp, headers))


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
