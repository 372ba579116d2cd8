"""The records of an archive as packs, in the order in which a task reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.history.archives import AMONG_EQUALS, Archive, before
from headrace.spark_bridge.plan.job import Application, Archived, Job
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.executor_errors import sealed
from headrace.spark_bridge.records.outputs import Row
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
from headrace.streams.seams.clients import TopicPartition
from headrace.topology.compile.source import stampers

UNNUMBERED = -(1 << 60)
"""From where records without an offset are counted: before every offset of Kafka."""


def numbered(
    archive: Archive, cuts: Mapping[TopicPartition, int], job: Job
) -> tuple[Any, dict[TopicPartition, Archived]]:
    """Return an archive's records before some offsets as packs, and what is known of them.

    Runs through the archive once; what comes out is kept on the executors' disks.
    """
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
    """Gives the records of one partition, which come in their order, the order of a stage."""

    def __init__(self, job: Job, topic: str) -> None:
        self._job = job
        self._topic = topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        application, plan = self._job.open()
        with sealed(full=application.config.log_errors == "full"):
            yield from self._numbered(application, plan, batches)

    def _numbered(
        self, application: Application, plan: BackfillPlan, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        make_stamper = _stamper_of(application, self._topic, plan.now_ms)
        sources = {place: i for i, place in enumerate(plan.inputs)}
        largest, previous, count, stamper = -1, -(1 << 62), 0, None
        place, first = None, 0
        for batch in batches:
            if not batch.num_rows:
                continue
            place = self._place_of(batch, place)
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
            yield from batches_of(packed_records(label, count, records, places))
            count += batch.num_rows
        if place is not None:
            said = {"partition": place.partition, "first": first, "largest": largest}
            label = Label("stats", -1, place.partition, self._topic)
            yield packs_to_arrow([packed_note(label, json.dumps(said).encode())])

    def _place_of(self, batch: pa.RecordBatch, before: TopicPartition | None) -> TopicPartition:
        """The partition of all records of a batch, which is that of those before."""
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
