"""History from DataFrames instead of from Kafka: Parquet, CSV, Delta or any other format.

The columns are ``key``, ``value`` (bytes or text) and ``timestamp`` (milliseconds since 1970, or a
timestamp), and optionally ``partition``, ``offset`` and ``headers``. The cut-over from archive to
Kafka must be exact: it follows from the offsets, or the caller gives it. Without offsets, records
are ordered by timestamp, then by file name and row within the file, or by content if Spark knows of
no files. A second attempt therefore reads them in the same order, however Spark splits the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.executor_errors import executor_error, without_record_texts
from headrace.spark_bridge.history.archive_checks import (
    EARLIEST_MS,
    EVERYWHERE,
    LATEST_MS,
    ArchiveStatistics,
    ArchiveSummary,
    Cutover,
    ReadRange,
    Source,
    Times,
    check_cutover,
    cuts_of,
    refuse_implausible_times,
    refuse_other_archive,
    refuse_unknown_end,
    summary_of,
)
from headrace.spark_bridge.history.planning import InputEnds, Until
from headrace.spark_bridge.plan.job import Archived, CompiledApplication, StageJob
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import consumer_opener, read_range
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
from headrace.spark_bridge.reports import ArchiveReport
from headrace.streams.errors import ARCHIVE_ROWS
from headrace.streams.kafka.protocols import GroupAdminClient, TopicPartition
from headrace.streams.metrics.snapshots import moment
from headrace.streams.plan.topics import describe_as
from headrace.topology.compile.source import stampers
from headrace.topology.errors import type_of

DAY_MS = 86_400_000
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

    if not hasattr(frame, "columns"):
        raise CannotBackfillError(
            f"source= must map topics to DataFrames, not to {type_of(frame)} (topic {topic}). Read "
            "files first, for example with spark.read.parquet(path)"
        )
    names = set(frame.columns)
    missing = sorted({"key", "value", "timestamp"} - names)
    if missing:
        raise CannotBackfillError(
            f"the archive has no column {', '.join(missing)} ({topic}, with the columns "
            f"{', '.join(map(repr, frame.columns))}). Add key, value and timestamp, and optionally "
            "partition, offset and headers"
        )
    if "offset" in names and "partition" not in names:
        raise CannotBackfillError(
            f"the archive has offsets without partitions ({topic}). Add the column partition"
        )
    kinds = dict(frame.dtypes)
    for name in ("key", "value"):
        if kinds[name] not in ("binary", "string", "void"):
            raise CannotBackfillError(
                f"the column {name} must be binary or string, not {kinds[name]} (archive of "
                f"{topic}). Give the bytes or text of the topic, such as to_json of a struct, and "
                "read CSV without inferSchema"
            )
    time = F.col("timestamp")
    if kinds["timestamp"] == "timestamp":
        time = F.unix_millis(time)
    elif kinds["timestamp"] not in ("bigint", "int"):
        raise CannotBackfillError(
            f"the column timestamp must be a long of milliseconds since 1970 or a timestamp, not "
            f"{kinds['timestamp']} (archive of {topic}). Convert it"
        )
    partition = F.col("partition") if "partition" in names else F.lit(None)
    offset = F.col("offset") if "offset" in names else F.lit(None)
    given = _with_tie_breakers(frame) if "offset" not in names else frame
    given = given.select(
        F.lit(topic).alias("topic"),
        partition.cast("int").alias("partition"),
        offset.cast("long").alias("offset"),
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        time.cast("long").alias("timestamp"),
        _headers(topic, kinds.get("headers")).alias("headers"),
        *(F.col(name) for name in AMONG_EQUALS if "offset" not in names),
    )
    frame = given
    if "partition" not in names:
        frame = given.mapInArrow(_Partitioned(partitions), given.schema)
    return Archive(topic, partitions, given, frame, "partition" in names, "offset" in names)


def _with_tie_breakers(frame: Any) -> Any:
    """Add the columns that sort records with equal timestamps.

    They are added directly to the scan of the files, because there they depend only on the files.
    The ids increase within a file, however Spark splits it. They carry no order across files, or
    for rows that do not come from a file.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col(name) for name in ("key", "value", "timestamp")]
    file = F.input_file_name()
    return frame.withColumns(
        {
            "content": F.xxhash64(*columns),
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
        f"the column headers must be {wanted}, not {kind} (archive of {topic}). Convert it"
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


def statistics_of(
    archive: Archive, cuts: Mapping[TopicPartition, int] | None = None
) -> ArchiveSummary:
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
        # Only plausible times, so that the number of days is limited.
        F.collect_set(
            F.when(
                F.col("timestamp").between(EARLIEST_MS, LATEST_MS),
                F.floor(F.col("timestamp") / DAY_MS),
            )
        ).alias("days"),
    )
    return summary_of(
        archive.topic,
        [ArchiveStatistics(**row.asDict()) for row in rows.collect()],
        archive.partitions,
        has_partitions=archive.has_partitions,
        has_offsets=archive.has_offsets,
    )


def _is_before(archive: Archive, cuts: Mapping[TopicPartition, int]) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    selected = F.lit(False)
    for tp, cut in cuts.items():
        if tp.topic == archive.topic:
            selected = selected | ((F.col("partition") == tp.partition) & (F.col("offset") < cut))
    return selected


def numbered(
    archive: Archive, cuts: Mapping[TopicPartition, int], job: StageJob
) -> tuple[Any, dict[TopicPartition, Archived]]:
    """Read an archive before given offsets once, as packs that persist on the executors' disks."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812

    frame, order = (
        archive.frame,
        ["partition", "timestamp", *AMONG_EQUALS, "key", "value", "headers"],
    )
    if archive.has_offsets:
        frame, order = frame.where(_is_before(archive, cuts)), ["partition", "offset"]
    rows = (
        frame.repartitionById(archive.partitions, F.col("partition"))
        .sortWithinPartitions(*order)
        .mapInArrow(_Numbered(job, archive.topic), PACK_DDL)
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        found = [json.loads(bytes(row["data"])) for row in rows.where("kind = 'stats'").collect()]
    except BaseException:
        with cleanup_after(rows.unpersist, quietly=True):
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
        with without_record_texts(full=application.config.log_errors == "full"):
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
            tp = self._partition_of(batch, tp)
            offsets = batch.column("offset")
            if offsets.null_count:
                offsets = pa.array(np.arange(count, count + batch.num_rows) + ARCHIVE_ROWS)
            numbers = np.asarray(offsets)
            first = first if count else int(numbers[0])
            before = np.concatenate(([previous], numbers[:-1]))
            if (twice := numbers[numbers <= before]).size:
                raise BackfillError(
                    f"the archive has an offset twice ({tp}, offset {twice[0]}). Remove duplicates"
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
            stats = {"partition": tp.partition, "first": first, "largest": largest}
            label = Label("stats", -1, tp.partition, self._topic)
            yield packs_to_arrow([packed_note(label, json.dumps(stats).encode())])

    def _partition_of(self, batch: pa.RecordBatch, before: TopicPartition | None) -> TopicPartition:
        """Return the partition of a batch, and check that all records so far belong to it."""
        ends = pc.min_max(batch.column("partition")).as_py()
        found = TopicPartition(self._topic, ends["min"])
        holes = batch.column("partition").null_count + batch.column("timestamp").null_count
        if holes or ends["max"] != found.partition or before not in (None, found):
            raise BackfillError(
                f"the archive has changed while it was read ({self._topic}): records have no "
                "partition or timestamp, or a partition that the topic does not have. Do not "
                "change it during a backfill"
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


# -- all archives of a backfill --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArchiveSet:
    """Archives of a backfill.

    Args:
        summaries: statistics of each archive, in the same order.
        cuts: first offset to read from Kafka after the archives.
    """

    archives: Sequence[Archive] = ()
    summaries: Sequence[ArchiveSummary] = ()
    cuts: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        source: Source,
        application: CompiledApplication,
        admin: GroupAdminClient,
        cutover: Cutover | None,
        plan: BackfillPlan | None,
        times: Times = "check",
    ) -> ArchiveSet:
        """Check the frames, and find the first offsets to read from Kafka after them."""
        partitions = cls.check(source, application, admin, cutover, plan)
        if source is None:
            return cls()
        archives = [open_archive(t, frame, partitions[t]) for t, frame in source.items()]
        starts = None if plan is None else plan.starts
        for archive in archives if plan is None else ():
            if _of_topic(cutover, archive.topic) is None:
                refuse_unknown_end(archive.topic, has_offsets=archive.has_offsets)
        found = [_summary(archive, starts) for archive in archives]
        cuts: dict[TopicPartition, int] = {}
        for summary in found:
            if plan is None and not summary.parts:
                raise CannotBackfillError(
                    f"the archive of {summary.topic} has no rows. Give its files, or omit the "
                    "archive if the topic has no earlier history"
                )
            if times == "check":
                refuse_implausible_times(summary)
            if plan is not None:
                refuse_other_archive(plan, summary)
                cuts.update({p: at for p, at in plan.starts.items() if p.topic == summary.topic})
            else:
                mine = _of_topic(cutover, summary.topic)
                read = _reader(application)
                ends = InputEnds(admin, committed=application.config.reads_committed)
                cuts.update(cuts_of(summary, partitions[summary.topic], ends, read, mine))
        return cls(archives, found, cuts)

    @classmethod
    def check(
        cls,
        source: Source,
        application: CompiledApplication,
        admin: GroupAdminClient,
        cutover: Cutover | None,
        plan: BackfillPlan | None,
    ) -> dict[str, int]:
        """Check topics and cut-over, without the frames; return the topics' partition counts."""
        if source is None:
            if cutover is not None:
                raise CannotBackfillError("cutover= requires source=. Give both, or omit it")
            cls._refuse_others({}, plan)
            return {}
        cls._refuse_topics(source, application)
        cls._refuse_others(source, plan)
        described = describe_as(admin, source)
        partitions = {name: found.partitions for name, found in described.items()}
        missing = sorted(source.keys() - partitions.keys())
        if missing:
            raise CannotBackfillError(
                f"topic {missing[0]} does not exist. Create it for the live application"
            )
        check_cutover(cutover, [TopicPartition(t, p) for t in source for p in range(partitions[t])])
        return partitions

    @staticmethod
    def _refuse_topics(source: Any, application: CompiledApplication) -> None:
        """Raise if an archive is not of a source topic, or is of a table's changelog."""
        if not isinstance(source, Mapping):
            raise CannotBackfillError(
                f"source= must map topics to DataFrames, not {source!r}. Omit it to read Kafka"
            )
        read = {t for sub in application.plans.values() for t in sub.topics.sources}
        unknown = sorted(source.keys() - read)
        if unknown:
            raise CannotBackfillError(
                f"source= has topics that the topology does not read ({', '.join(unknown)}). Use "
                f"topics of {', '.join(sorted(read))}"
            )
        for plan in application.plans.values():
            for store in plan.program.sub_topology.stores:
                if store.source_topic in source:
                    raise CannotBackfillError(
                        f"{store.source_topic} is also the changelog of table {store.name}, from "
                        "which the live application cannot restore archived rows. Omit the "
                        "archive if the topic still has all rows, or remove "
                        "reuse.ktable.source.topics from topology.optimization"
                    )

    @staticmethod
    def _refuse_others(source: Mapping[str, Any], plan: BackfillPlan | None) -> None:
        """Raise if a second attempt gets archives of other topics than the first attempt."""
        if plan is None or set(plan.archived) == set(source):
            return
        raise CannotBackfillError(
            f"backfill {plan.id} was planned with archives of "
            f"{', '.join(plan.archived) or 'no topics'}, not of "
            f"{', '.join(sorted(source)) or 'no topics'}. Give the same source= (--source), or "
            "drop it"
        )

    @property
    def reports(self) -> tuple[ArchiveReport, ...]:
        both = zip(self.archives, self.summaries, strict=True)
        return tuple(summary.report(archive.partitions) for archive, summary in both)

    def ended(self, plan: BackfillPlan, until: Until) -> BackfillPlan:
        """Check that archives can end at the plan's ends; return the plan with their row counts.

        An archive is scanned again only if the plan cuts it.
        """
        rows = {}
        for archive, of_all in zip(self.archives, self.summaries, strict=True):
            tps = [TopicPartition(archive.topic, p) for p in range(archive.partitions)]
            short = [tp for tp in tps if plan.starts[tp] < self.cuts[tp]]
            if short and not archive.has_offsets:
                raise CannotBackfillError(
                    f"until= is before the cut-over, {self.cuts[short[0]]}, and the archive has no "
                    f"offsets to cut it at ({short[0]}, offset {plan.ends[short[0]]}). Remove the "
                    "records after the end from the archive, and give the end as cutover="
                )
            is_cut = of_all.is_beyond(plan.starts)
            summary = _summary(archive, plan.starts) if is_cut else of_all
            if isinstance(until, datetime):
                _refuse_left_out(summary, int(until.timestamp() * 1000))
            rows.update(summary.archived_rows)
        return replace(plan, archived_rows=rows) if self.archives else plan

    def numbered(
        self, job: StageJob, plan: BackfillPlan
    ) -> tuple[list[Any], dict[TopicPartition, Archived]]:
        """Return the records before the plan's ends as packs, and their range by partition."""
        frames: list[Any] = []
        known: dict[TopicPartition, Archived] = {}
        for archive in self.archives:
            try:
                frame, archived = numbered(archive, plan.starts, job)
            except Exception as error:
                with cleanup_after(*[frame.unpersist for frame in frames], quietly=True):
                    raise _unreadable(archive.topic, error) from error
            frames.append(frame)
            known.update(archived)
        return frames, known


def _of_topic(
    cutover: Cutover | None, topic: str
) -> Mapping[TopicPartition, int] | datetime | None:
    assert not isinstance(cutover, str), "check_cutover accepts no text"
    if isinstance(cutover, Mapping):
        return {p: at for p, at in cutover.items() if p[0] == topic} or None
    return cutover


def _summary(archive: Archive, ends: Mapping[TopicPartition, int] | None) -> ArchiveSummary:
    try:
        return statistics_of(archive, ends)
    except CannotBackfillError:
        raise
    except Exception as error:
        raise _unreadable(archive.topic, error) from error


def _unreadable(topic: str, error: Exception) -> Exception:
    return executor_error(f"the archive of {topic} cannot be read", error)


def _reader(application: CompiledApplication) -> ReadRange:
    config = application.config
    timeout_s = config.task_timeout_ms / 1000
    return partial(
        read_range, consumer_opener(config, committed=config.reads_committed), timeout_s=timeout_s
    )


def _refuse_left_out(summary: ArchiveSummary, until_ms: int) -> None:
    for partition, part in summary.parts.items():
        if part.latest is not None and part.latest >= until_ms:
            tp = TopicPartition(summary.topic, partition)
            raise CannotBackfillError(
                f"the archive has records after until=, which the live application cannot read "
                f"from Kafka ({summary.topic if partition == EVERYWHERE else tp}, at "
                f"{moment(part.latest)}). Give a later time, or offsets"
            )
