"""Sink of rows to Parquet files, named by position; needs `pyarrow`, and `obstore` for objects.

A batch is a file. Its name contains the position before the batch, and its footer the position
after it: the footer of a partition's newest file is the sink's position, and a writer with an
outdated position finds that the file which it would create exists. Rows and position are therefore
written atomically.

    orders/partition=0/beginning-keep-orders-1f0c9a2b7d3e4f50.parquet                  to 1000
    orders/partition=0/00000000000000001000-keep-orders-1f0c9a2b7d3e4f50.parquet       to 2345
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

from headrace.streams.connectors.arrow import ArrowColumns, ArrowRows
from headrace.streams.connectors.locations import TAIL_BYTES, Directory, Location, Objects
from headrace.streams.connectors.sqlite import require
from headrace.topology.errors import TopologyError, type_of
from headrace.topology.external_sink import (
    SinkBatch,
    SinkBatching,
    SinkFencedError,
    SinkUnusableError,
)
from headrace.topology.operators.columns import Row, Types

COMPRESSIONS = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")

_BEGINNING = "beginning"
"""Name of the first file: its writer has found no position, which differs from position 0."""
_PARTITION = "partition"
_SAFE = re.compile(r"[^A-Za-z0-9_.]+")


class ParquetSink:
    """Sink that appends rows to Parquet files in a directory or an object store.

    Files are in folders ``partition=0`` and so on, one for each partition of the topic; each has
    the records of a range of offsets. Rows are collected into batches. If two writers create the
    same file, the second gets an error.

    Args:
        path: a directory, which is created in an existing parent; or a URL such as
            ``s3://lake/orders``, whose bucket must exist, with credentials from the environment; or
            the prefix in `store`.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name, which
            may be types of pyarrow.
        row: called as ``row(key, value)``; returns the object that contains the columns. None takes
            them from the value and the key.
        compression: ``zstd``, ``snappy``, ``gzip``, ``brotli``, ``lz4`` or ``none``.
        every: maximum time to collect rows for a file.
        max_rows: number of rows that triggers an earlier write.
        max_bytes: estimated memory of the rows that triggers an earlier write.
        store: a store of `obstore`, such as an `S3Store` with an endpoint and credentials.

    Raises:
        TopologyError: the arguments are inconsistent.

    Examples:
        >>> import tempfile
        >>> import pyarrow.parquet
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> path = tempfile.mkdtemp() + "/orders"
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serdes.string)
        >>> orders.to_sink(ParquetSink(path, {"item": str, "price": float}), name="keep-orders")
        >>> with TopologyTestDriver(builder.build(), real_sinks=True) as driver:
        ...     driver.input("orders").send("tea", {"item": "tea", "price": 9.5})
        >>> pyarrow.parquet.read_table(path, columns=["item", "price"]).to_pylist()
        [{'item': 'tea', 'price': 9.5}]
    """

    keyed = False

    def __init__(
        self,
        path: str | Path,
        columns: type | Types,
        *,
        row: Row | None = None,
        compression: str = "zstd",
        every: timedelta = timedelta(minutes=1),
        max_rows: int = 100_000,
        max_bytes: int = 128 << 20,
        store: Any = None,
    ) -> None:
        self._path = str(path)
        self._columns = ArrowColumns(self._path, columns, row=row)
        if _PARTITION in self._columns.names:
            raise TopologyError(
                f"a column of {self._path} is named {_PARTITION}, which readers take from the "
                "names of folders. Give it another name"
            )
        if compression not in COMPRESSIONS:
            given = repr(compression) if isinstance(compression, str) else type_of(compression)
            raise TopologyError(
                f"compression must be one of {', '.join(COMPRESSIONS)}, not {given}"
            )
        self._compression = compression
        self.batching = SinkBatching(every=every, max_rows=max_rows, max_bytes=max_bytes)
        self._store = store
        self._location: Location | None = None

    def __repr__(self) -> str:
        return f"ParquetSink({self._path!r})"

    def open(self, name: str, /) -> _ParquetConnection:
        """Check that the location exists or can be created."""
        require("pyarrow.parquet", "ParquetSink", "parquet")
        location = self._location or self._make_location()
        location.prepare()
        self._location = location
        rows = ArrowRows(self._columns)
        return _ParquetConnection(
            location, name, rows, self._compression, self.batching, self._path
        )

    def _make_location(self) -> Location:
        is_url = "://" in self._path
        if self._store is None and not is_url:
            return Directory(Path(self._path))
        require("obstore", "ParquetSink in an object store", "parquet")
        if self._store is not None:
            return Objects(self._store, self._path)
        from obstore.store import from_url

        try:
            # An attempt blocks the worker and is repeated later anyway.
            retries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
            return Objects(from_url(self._path, retry_config=retries), "", self._path)
        except Exception as error:  # each kind of store raises its own errors
            raise SinkUnusableError(
                f"{self._path} is not the URL of an object store ({type(error).__name__}). Write "
                "s3://BUCKET/PATH, gs://... or az://..., or give store="
            ) from error


class _ParquetConnection:
    def __init__(
        self,
        location: Location,
        name: str,
        rows: ArrowRows,
        compression: str,
        batching: SinkBatching,
        path: str,
    ) -> None:
        self._location = location
        self._name = name
        self._rows = rows
        self._compression = compression
        self._path = path
        self.batching = batching
        self._newest: dict[tuple[str, int], str] = {}
        """Name of the last written file, by source and partition."""

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        found = {partition: self._position(source, partition) for partition in partitions}
        return {p: position for p, position in found.items() if position is not None}

    def _position(self, source: str, partition: int) -> int | None:
        folder, ending = _folder(partition), self._ending(source)
        own = [name for name in self._location.names(folder) if name.endswith(ending)]
        begins = {_begin(name.removesuffix(ending)): name for name in own}
        begins.pop(None, None)
        if not begins:
            return None
        newest = begins[max(begin for begin in begins if begin is not None)]
        return self._next(folder, newest)

    def _next(self, folder: str, name: str) -> int:
        import pyarrow
        from pyarrow import parquet

        size = TAIL_BYTES
        try:
            content = self._location.end(folder, name, size)
            needed = int.from_bytes(content[-8:-4], "little") + 8
            if needed > len(content) == size:
                content = self._location.end(folder, name, needed)
            metadata = parquet.read_metadata(pyarrow.BufferReader(content)).metadata or {}
            return int(metadata[b"headrace.next"])
        except (pyarrow.ArrowException, ValueError, KeyError) as error:
            raise SinkUnusableError(
                f"{self._path}/{folder}/{name} has no position in its footer "
                f"({type(error).__name__}), and is the newest file of its partition. Restore it, "
                "or delete it to write its rows again from the topic"
            ) from error

    def write(self, batch: SinkBatch, /) -> None:
        import pyarrow
        from pyarrow import parquet

        table = self._rows.table(batch.rows).replace_schema_metadata(
            {
                "headrace.sink": self._name,
                "headrace.source": batch.source,
                "headrace.partition": str(batch.partition),
                "headrace.next": str(batch.next),
            }
        )
        content = pyarrow.BufferOutputStream()
        parquet.write_table(table, content, compression=self._compression)
        folder, begin = _folder(batch.partition), _named(batch.expected)
        name = f"{begin}{self._ending(batch.source)}"
        self._require(batch, folder)
        try:
            self._location.create(folder, name, content.getvalue().to_pybytes())
        except FileExistsError as error:
            raise SinkFencedError(
                f"{self._path}/{folder}/{name} exists: another worker has written, or the result "
                "of a write was lost"
            ) from error
        self._newest[batch.source, batch.partition] = name

    def _require(self, batch: SinkBatch, folder: str) -> None:
        newest = self._newest.get((batch.source, batch.partition))
        if newest is None:
            found = self._position(batch.source, batch.partition)
        else:
            found = self._next(folder, newest)
        if found != batch.expected:
            raise SinkFencedError(
                f"partition {batch.partition} of {batch.source} is at {found} in {self._path}, and "
                f"not at {batch.expected}: another worker has written, the result of a write was "
                "lost, or files were replaced"
            )

    def _ending(self, source: str) -> str:
        """Include a hash of sink and source: a re-created topic reuses offsets."""
        step = _SAFE.sub("_", self._name.rpartition("/")[2])[:60]
        digest = blake2b(f"{self._name}\n{source}".encode(), digest_size=8).hexdigest()
        return f"-{step}-{digest}.parquet"

    def close(self) -> None: ...


def _folder(partition: int) -> str:
    return f"{_PARTITION}={partition}"


def _named(position: int | None) -> str:
    return _BEGINNING if position is None else f"{position:020}"


def _begin(name: str) -> int | None:
    """Return the start position in a file name; None if the file does not belong to a sink."""
    if name == _BEGINNING:
        return -1
    return int(name) if len(name) == 20 and name.isdecimal() else None
