"""Packs: the form of records in Spark, many of them in a row as Arrow's bytes.

Spark moves, sorts and stores rows of packs, not records, because its cost per row exceeds the cost
of processing a record. The columns next to the data describe the pack (see `PACK`). Its kinds are:

    record     records of a repartition topic, or of an archive, for one partition: `topic` and
               `partition` are their destination, `sub` and `d` the task that produced them
    changelog  rows of stores, for the topic of a changelog
    sink       records for a topic outside of the application
    progress   input partitions of a task: a value is the metadata to commit with the offset
    stats      statistics of a task, as JSON
    failed     the error of a task that cannot process a record, as text
    sign       no rows: shows that a task exists, as Spark omits a stage without rows

Records are ordered by (mts, src, off, seq): `mts` is the largest timestamp of the source partition
up to and including the record, `src` the number of that partition in the plan, `off` the record's
offset. This keeps the order of each partition. Across partitions it is the order of a live task
that has all its inputs buffered: the lowest head timestamp comes first, ties are broken by topic
and partition. A record of a repartition topic has the `mts`, `src` and `off` of the record that
caused it, and `seq` counts the records with the same cause in a task. A task produces records in
this order, so a pack is sorted; packs of several tasks overlap (see
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
"""Approximate maximum size of a pack; a single larger record exceeds it."""

BATCH_BYTES = 8 << 20
"""Maximum total size of the packs in one Arrow batch; a single larger pack exceeds it."""

HEADERS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Spark's timestamp type."""

_LABEL = {"kind": pa.string(), "sub": pa.int32(), "d": pa.int32(), "topic": pa.string()}
_ORDER = {"mts": pa.int64(), "src": pa.int32(), "off": pa.int64(), "seq": pa.int32()}
_CONTENT = {
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.int64(),
    "headers": HEADERS,
}

ROW = pa.schema({"partition": pa.int32(), **_CONTENT})
"""Schema of a pack of rows for topics; partition -1 means that the key decides."""

RECORD = pa.schema({**_CONTENT, **_ORDER})
"""Schema of a pack of records for tasks."""

RESULT = pa.schema({**_LABEL, "partition": pa.int32(), "number": pa.int64(), **_CONTENT})
"""Schema of the rows that are handed over; `number` counts the rows of a task and kind."""

RESULT_KINDS = ("changelog", "sink", "progress")
"""Kinds of packs that are handed over."""

ORDER = (*_ORDER, "sub", "d", "number")
"""Sort columns of packs of records for the task that reads them: the order of the first record. The
last three columns only separate records that different tasks made of one record."""

PACK = pa.schema(
    {
        **_LABEL,
        "partition": pa.int32(),
        "number": pa.int64(),
        "rows": pa.int64(),
        "oldest": pa.int64(),
        **_ORDER,
        "data": pa.binary(),
    }
)
"""Schema of packs, one row per pack. `number` is the number of rows of the kind that the task
packed before, `rows` the number of rows in the pack, `oldest` their smallest timestamp; the next
four are the order of the first record, or null."""

_DATA = PACK.names.index("data")

_DDL = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    TIMESTAMP: "timestamp",
}


def ddl_of(kind: Any) -> str:
    """Return an Arrow type as Spark DDL.

    >>> ddl_of(pa.struct([pa.field("a", pa.map_(pa.string(), pa.int64()))]))
    'struct<`a`:map<string,bigint>>'
    """
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'`{one.name}`:{ddl_of(one.type)}' for one in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_of(kind.key_type)},{ddl_of(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    return _DDL.get(kind) or str(kind)


def schema_ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {ddl_of(field.type)}" for field in schema)


PACK_DDL = schema_ddl(PACK)


class Label(NamedTuple):
    """Origin and topic of a pack: kind, sub-topology and partition of the task, and topic."""

    kind: str
    sub: int
    d: int
    topic: str


Pack = tuple[Any, ...]
"""The values of `PACK`."""


def packed_records(
    label: Label, number: int, records: pa.RecordBatch, partitions: Any
) -> Iterator[Pack]:
    """Pack records in order, separately for each partition; `number` were packed before."""
    order = np.argsort(partitions, kind="stable")
    partitions = partitions[order]
    bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    if len(bounds) > 2:
        records = records.take(pa.array(order))
    for start, end in itertools.pairwise(bounds):
        for part in _cut(records.slice(start, end - start)):
            first = [part.column(name)[0].as_py() for name in _ORDER]
            yield _pack(label, int(partitions[start]), number, part, first)


def packed_rows(label: Label, number: int, rows: pa.RecordBatch) -> Iterator[Pack]:
    """Pack rows for a topic, in the columns of `ROW`."""
    for part in _cut(rows):
        yield _pack(label, -1, number, part, [None] * 4)
        number += part.num_rows


def packed_note(label: Label, note: bytes) -> Pack:
    return (*label[:3], "", -1, 0, 0, None, None, None, None, None, note)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
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
    """Return the rows or records of a pack, without copying their bytes."""
    with pa.ipc.open_stream(data if isinstance(data, pa.Buffer) else pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def packs_to_arrow(packs: Sequence[Pack]) -> pa.RecordBatch:
    arrays = [
        pa.array(values, field.type)
        for values, field in zip(zip(*packs, strict=True), PACK, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PACK)


def batches_of(packs: Iterable[Pack]) -> Iterator[pa.RecordBatch]:
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
