"""Records on their way through Spark: many of them in one row, as Arrow's bytes.

Spark moves, sorts and keeps rows of packs, not records: what it does for a row costs more than
processing a record does. The columns beside the data say what a pack has (see `PACK`).

    record     records of a repartition topic, or of an archive, for one partition: `topic` and
               `partition` are where they go, `sub` and `d` where they come from
    changelog  rows of stores, for the topic of a changelog
    sink       records for a topic outside of the application
    progress   input partitions of a task: a value is what is to be committed beside the offset
    stats      what a task has to say of itself, as JSON
    sign       nothing: that a task is there, as Spark leaves out a stage without rows

The order of records is that of (mts, src, off, seq): `mts` is the largest timestamp that the source
partition had up to and with the record, `src` the number of that partition in the plan, `off` the
record's offset. This keeps the order of each partition, and among partitions it is what a task does
live that has all its inputs buffered: the lowest head timestamp goes first, ties by topic and
partition. A record of a repartition topic has the `mts`, `src` and `off` of the record that caused
it, and `seq` counts what one such record caused in a task. A task makes records in this order, so
a pack has them sorted; packs of several tasks overlap (see
`headrace.spark_bridge.records.merging`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PACK_BYTES = 1 << 20
"""About how large a pack becomes at most, if its records are not larger."""

BATCH_BYTES = 8 << 20
"""How large the packs of one Arrow batch become together, if one alone is not larger."""

HEADERS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))

ROW = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("headers", HEADERS),
    ]
)
"""What is in a pack of rows for topics: their partition is -1 where the key decides."""

RECORD = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("headers", HEADERS),
        pa.field("mts", pa.int64()),
        pa.field("src", pa.int32()),
        pa.field("off", pa.int64()),
        pa.field("seq", pa.int32()),
    ]
)
"""What is in a pack of records for tasks."""

RESULT_KINDS = ("changelog", "sink", "progress")
"""The kinds that are handed over."""

ORDER = ("mts", "src", "off", "seq", "sub", "d", "number")
"""How packs of records are sorted for the task that reads them: by their first record; the last
three only tell apart what different tasks made of one record."""

PACK = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("sub", pa.int32()),
        pa.field("d", pa.int32()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("number", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("oldest", pa.int64()),
        pa.field("mts", pa.int64()),
        pa.field("src", pa.int32()),
        pa.field("off", pa.int64()),
        pa.field("seq", pa.int32()),
        pa.field("data", pa.binary()),
    ]
)
"""One row a pack. `number` counts the rows of a kind that a task had packed before, `rows` those in
the pack, `oldest` is their smallest timestamp; the next four are the first record's, or null."""

_DATA = PACK.names.index("data")

PACK_DDL = (
    "kind string, sub int, d int, topic string, partition int, number long, rows long, "
    "oldest long, mts long, src int, off long, seq int, data binary"
)


class Label(NamedTuple):
    """Whose rows are in a pack: kind, sub-topology and partition of the task, and the topic."""

    kind: str
    sub: int
    d: int
    topic: str


Pack = tuple[Any, ...]
"""The values of `PACK`."""


def packed_records(
    label: Label, number: int, records: pa.RecordBatch, places: Any
) -> Iterator[Pack]:
    """Pack records of tasks, those of each partition by themselves.

    Args:
        number: how many records the task made before.
        records: in the columns of `RECORD`, in their order.
    """
    order = np.argsort(places, kind="stable")
    places = places[order]
    bounds = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    if len(bounds) > 2:
        records = records.take(pa.array(order))
    for start, end in itertools.pairwise(bounds):
        for part in _cut(records.slice(start, end - start)):
            first = [part.column(name)[0].as_py() for name in ("mts", "src", "off", "seq")]
            yield _pack(label, int(places[start]), number, part, first)


def packed_rows(label: Label, number: int, rows: pa.RecordBatch) -> Iterator[Pack]:
    """Pack rows for one topic, in the columns of `ROW`."""
    for part in _cut(rows):
        yield _pack(label, -1, number, part, [None] * 4)
        number += part.num_rows


def packed_note(label: Label, note: bytes) -> Pack:
    """What a task says of itself, as a pack without rows."""
    return (*label[:3], "", -1, 0, 0, None, None, None, None, None, note)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch of records that are large."""
    parts = min(-(-batch.nbytes // PACK_BYTES), batch.num_rows) or 1
    step = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _pack(
    label: Label, partition: int, number: int, rows: pa.RecordBatch, first: Sequence[Any]
) -> Pack:
    kind, sub, d, topic = label
    oldest = pc.min(rows.column("timestamp")).as_py()
    return (
        kind, sub, d, topic, partition, number, rows.num_rows, oldest, *first, _bytes(rows),
    )  # fmt: skip


def _bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def opened(data: bytes | bytearray | pa.Buffer) -> pa.RecordBatch:
    """The rows or records of a pack, without a copy of their bytes."""
    with pa.ipc.open_stream(data if isinstance(data, pa.Buffer) else pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def packs_to_arrow(packs: Sequence[Pack]) -> pa.RecordBatch:
    """Packs as Spark takes them."""
    arrays = [
        pa.array(values, field.type)
        for values, field in zip(zip(*packs, strict=True), PACK, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PACK)


def batches_of(packs: Iterable[Pack]) -> Iterator[pa.RecordBatch]:
    """Yield packs as Spark takes them, as many at a time as are small enough together."""
    some: list[Pack] = []
    size = 0
    for pack in packs:
        data = len(pack[_DATA])
        if some and size + data > BATCH_BYTES:
            yield packs_to_arrow(some)
            some, size = [], 0
        some.append(pack)
        size += data
    if some:
        yield packs_to_arrow(some)
