"""The rows that a backfill works with, as Arrow and as Spark knows them.

A stage's frame has one row for everything that its tasks made:

    record     a record of a repartition topic: `topic` and `partition` are where it goes, `sub` and
               `d` where it comes from
    changelog  a row of a store, for the topic of its changelog
    sink       a record for a topic outside of the application
    progress   an input partition of a task: `value` is what is to be committed beside its offset
    stats      what a task has to say of itself, as JSON

The order of records is that of (mts, src, off, seq): `mts` is the largest timestamp that the source
partition had up to and with the record, `src` the number of that partition in the plan, `off` the
record's offset. This keeps the order of each partition, and among partitions it is what a task does
live that has all its inputs buffered: the lowest head timestamp goes first, ties by topic and
partition. A record of a repartition topic has the `mts`, `src` and `off` of the record that caused
it, and `seq` counts what one such record caused in a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from spark_bridge.plan import BackfillPlan

__all__ = ["ORDER", "RESULT", "RESULT_DDL", "STAGE", "STAGE_DDL", "ResultRow", "Results"]

HEADERS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))
_HEADERS_DDL = "array<struct<name:string,value:binary>>"

RESULT = pa.schema(
    [
        pa.field("sub", pa.int32()),
        pa.field("d", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("number", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("headers", HEADERS),
    ]
)
"""The rows of `Results.frame`."""

RESULT_DDL = (
    "sub int, d int, kind string, topic string, partition int, number long, key binary, "
    f"value binary, timestamp long, headers {_HEADERS_DDL}"
)

_ORDER_FIELDS = [
    pa.field("mts", pa.int64()),
    pa.field("src", pa.int32()),
    pa.field("off", pa.int64()),
    pa.field("seq", pa.int32()),
]
STAGE = pa.schema([*RESULT, *_ORDER_FIELDS])
"""The rows of a stage's frame; the last four are null but for records."""

STAGE_DDL = f"{RESULT_DDL}, mts long, src int, off long, seq int"

ORDER = ("mts", "src", "off", "seq", "sub", "d", "number")
"""How records are sorted for the task that reads them; the last three only tell apart what
different tasks made of one record."""

RESULT_KINDS = ("changelog", "sink", "progress")


class ResultRow(NamedTuple):
    """One row of `Results` (see `RESULT`); `headers` are pairs, or None where there are none."""

    sub: int
    d: int
    kind: str
    topic: str
    partition: int
    number: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class Results:
    """What a whole backfill computed, before it is handed over.

    Args:
        frame: a Spark DataFrame of `RESULT_DDL`, lazy and persisted; the rows of one task are in
            one Spark partition, in the order of `number`.
        plan: what was read.
    """

    frame: Any
    plan: BackfillPlan

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How many rows there are of each kind and topic; runs the stages that have not run."""
        rows = self.frame.groupBy("kind", "topic").count().collect()
        return {(row["kind"], row["topic"]): row["count"] for row in rows}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow batches in the driver, one Spark partition after the other.

        Stages come in their order, within them tasks by partition, within a task rows by `number`.
        """
        packed = self.frame.mapInArrow(pack, "batch binary")
        for row in packed.toLocalIterator(prefetchPartitions=True):
            with pa.ipc.open_stream(pa.py_buffer(row["batch"])) as reader:
                yield from reader

    def rows(self) -> Iterator[ResultRow]:
        """Yield the rows in the driver, in the order of `batches`."""
        for batch in self.batches():
            yield from result_rows(batch)


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make each batch one row of bytes: many times quicker to collect than rows are."""
    for batch in batches:
        if not batch.num_rows:
            continue
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        packed = sink.getvalue().to_pybytes()
        yield pa.RecordBatch.from_arrays([pa.array([packed], pa.binary())], names=["batch"])


def result_rows(batch: pa.RecordBatch) -> Iterator[ResultRow]:
    """Yield the rows of a batch of `RESULT`.

    >>> columns = [[0], [1], ["sink"], ["out"], [-1], [0], [b"k"], [None], [5]]
    >>> arrays = [pa.array(c, f.type) for c, f in zip(columns, RESULT)]
    >>> headers = pa.array([[{"name": "h", "value": b"1"}]], HEADERS)
    >>> batch = pa.RecordBatch.from_arrays([*arrays, headers], schema=RESULT)
    >>> next(result_rows(batch)).headers
    [('h', b'1')]
    """
    columns = [batch.column(name).to_pylist() for name in RESULT.names]
    headers = columns[-1]
    columns[-1] = [h and [(pair["name"], pair["value"]) for pair in h] for h in headers]
    for row in zip(*columns, strict=True):
        yield ResultRow(*row)
