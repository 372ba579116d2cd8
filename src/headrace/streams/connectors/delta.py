"""Rows in a table of Delta Lake, with the positions in the table's own log.

A position is the version of an application transaction (`txn`) that is committed with the rows.
The log refuses two commits of one application that do not know of each other. So the position is
compared at the version of the table that the commit is made from, and a commit of another one in
between is found by the commit itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.streams.connectors.arrow import (
    ArrowColumns,
    ArrowRows,
    TableRows,
    partitioning,
    require,
    said,
)
from headrace.streams.connectors.locations import require_writable
from headrace.topology.external_sink import (
    SinkBatch,
    SinkBatching,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.operators.columns import Row, Types, require_bool
from headrace.topology.windows import duration_ms

Options = Mapping[str, str]

_GONE = "headrace_gone"
"""The column of a merge that says whether its row is deleted."""
_OF_STORE = re.compile(
    r"object store|Generic (S3|GCS|MicrosoftAzure|HTTP|LocalFileSystem)"
    r"|Invalid table version|File not found|No files in log|older than the existing snapshot"
)
"""Another attempt may succeed, if only as the log is read from its beginning."""
_NO_RIGHT = re.compile(r"\b(401|403)\b|permission denied|denied|unauthenticated|NoSuchBucket", re.I)
_UNSUPPORTED = re.compile(r"unsupported|not supported|append-only", re.I)
_NOT_MET = "failed validation check"
_PAUSE_S = 0.02


class DeltaSink:
    """Writes rows to a table of Delta Lake: appended, or merged under their keys.

    Rows and position are one commit of the table's log. A commit is a file or more, so rows are
    collected until it is worth it. Times of day are written as text, as Delta has none.

    Args:
        uri: where the table is: a directory, or an address such as ``s3://bucket/orders``.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name: of
            Python, of pyarrow, or a name such as ``"int32"``.
        key: the columns that name a row; without them rows are appended. A merge writes anew the
            files that have rows with these keys.
        row: called as ``row(key, value)``; returns what the columns are looked for in. None looks
            in the value and in the key.
        create: make the table where it is not there.
        partition_by: the columns whose values divide the files of a table that is made.
        every: how long rows are collected for one commit at most.
        max_rows: with so many rows it is made earlier.
        max_bytes: the same of their memory, as far as it is known.
        storage_options: what deltalake needs for the store, such as credentials, or a function that
            returns it, called with each connection.
        timeout: how long one request to the store may take, and how long a commit is tried again
            that others' commits get ahead of.

    Raises:
        TopologyError: what is given does not fit.

    Example:
        >>> import tempfile
        >>> from deltalake import DeltaTable
        >>> from headrace import DeltaSink, StreamsBuilder, TopologyTestDriver, serdes
        >>> path = tempfile.mkdtemp() + "/words"
        >>> sink = DeltaSink(path, {"word": str, "at": int}, create=True)
        >>> builder = StreamsBuilder()
        >>> builder.stream("words", key=serdes.string).to_sink(sink, name="keep-words")
        >>> with TopologyTestDriver(builder.build(), real_sinks=True) as driver:
        ...     driver.input("words").send_many([("rose", {"word": "rose", "at": 1})])
        >>> DeltaTable(path).to_pyarrow_table().to_pylist()
        [{'word': 'rose', 'at': 1}]
    """

    def __init__(
        self,
        uri: str | Path,
        columns: type | Types,
        *,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        create: bool = False,
        partition_by: str | Sequence[str] = (),
        every: timedelta = timedelta(minutes=1),
        max_rows: int = 100_000,
        max_bytes: int = 128 << 20,
        storage_options: Options | Callable[[], Options] | None = None,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._uri = str(uri)
        self._columns = ArrowColumns(self._uri, columns, key, row)
        self._create = require_bool("create", create)
        self._parts = partitioning(self._columns, partition_by, create=create)
        self.batching = SinkBatching(every=every, max_rows=max_rows, max_bytes=max_bytes)
        self._options = storage_options
        self._timeout_s = duration_ms("timeout", timeout, at_least=1) / 1000
        self._was_open = False

    def __repr__(self) -> str:
        return f"DeltaSink({self._uri!r})"

    @property
    def keyed(self) -> bool:
        """Whether it was given a key."""
        return bool(self._columns.key)

    def open(self, name: str, /) -> _Connection:
        """Load the table's log, and see that its columns are there."""
        for module in ("deltalake", "pyarrow"):
            require(module, "DeltaSink", "delta")
        import pyarrow

        with _told(self._columns, is_first=not self._was_open):
            if not self._was_open:
                require_writable(f"{self._uri}/_delta_log")
            table = self._load()
            _require_changes(self._columns, table)
            rows = TableRows(self._columns, pyarrow.schema(table.schema().to_arrow()))
        self._was_open = True
        return _Connection(table, name, self._columns, rows, self._timeout_s, self.batching)

    def _load(self) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        given = self._options() if callable(self._options) else self._options
        limit = f"{self._timeout_s}s"
        options = {"timeout": limit, "connect_timeout": limit, "retry_timeout": limit}
        options |= given or {}
        try:
            return DeltaTable(self._uri, storage_options=options)
        except TableNotFoundError as error:
            if self._was_open:
                # As a mount that is gone: it is not to begin anew as an empty table.
                raise SinkUnavailableError(said(error)) from error
            if not self._create:
                raise SinkUnusableError(
                    f"there is no Delta table at {self._uri}; make it, or give create=True"
                ) from error
        schema = _schema_of(self._columns)
        DeltaTable.create(
            self._uri,
            schema,
            mode="ignore",
            partition_by=self._parts or None,
            storage_options=options,
        )
        return DeltaTable(self._uri, storage_options=options)


class _Connection:
    def __init__(
        self,
        table: Any,
        name: str,
        columns: ArrowColumns,
        rows: TableRows,
        timeout_s: float,
        batching: SinkBatching,
    ) -> None:
        self._table = table
        self._name = name
        self._columns = columns
        self._rows = rows
        self._timeout_s = timeout_s
        self.batching = batching
        self._schema = table.schema()

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        with _told(self._columns):
            self._table.update_incremental()
            found = {p: self._table.transaction_version(self._place(source, p)) for p in partitions}
        return {p: position for p, position in found.items() if position is not None}

    def write(self, batch: SinkBatch, /) -> None:
        from deltalake.exceptions import CommitFailedError

        commit = self._merge if self._columns.key and batch.rows else self._append
        made = self._merged(batch) if commit == self._merge else self._rows.table(batch.rows)
        deadline = time.monotonic() + self._timeout_s
        pause_s = _PAUSE_S
        with _told(self._columns):
            while True:
                self._table.update_incremental()
                self._require(batch)
                try:
                    return commit(batch, made)
                except CommitFailedError as error:
                    if _UNSUPPORTED.search(str(error)):
                        raise
                    # Others have committed: whether one of them has moved the position is next.
                    if time.monotonic() + pause_s > deadline:
                        raise SinkUnavailableError(
                            f"the commits of others to {self._columns.table} got ahead of this "
                            f"one for {self._timeout_s:g} s: {said(error)}"
                        ) from error
                    time.sleep(pause_s)
                    pause_s *= 2

    def _place(self, source: str, partition: int) -> str:
        return f"headrace/{self._name}/{source}/{partition}"

    def _require(self, batch: SinkBatch) -> None:
        """See that the table, as the commit will know it, is what the batch was made for."""
        found = self._table.transaction_version(self._place(batch.source, batch.partition))
        if found != batch.expected:
            raise SinkFencedError(
                f"partition {batch.partition} of {batch.source} is not at {batch.expected} in the "
                f"log of {self._columns.table}: another worker has written, or an answer was lost"
            )
        if self._table.schema() != self._schema:
            raise SinkUnavailableError(f"the columns of {self._columns.table} are others now")

    def _properties(self, batch: SinkBatch) -> Any:
        from deltalake import CommitProperties, Transaction

        # Without a time of its own it is kept for good, whatever is set for the retention of these.
        place = self._place(batch.source, batch.partition)
        return CommitProperties(app_transactions=[Transaction(place, batch.next)])

    def _append(self, batch: SinkBatch, made: Any) -> None:
        from deltalake import write_deltalake

        properties = self._properties(batch)
        write_deltalake(self._table, made, mode="append", commit_properties=properties)

    def _merged(self, batch: SinkBatch) -> Any:
        """All rows with keys, and whether they are gone."""
        import pyarrow

        there, gone = self._columns.last_of_each_key(batch.rows)
        tables = [self._rows.table(there), self._rows.keys(gone)]
        # Those that are gone have their keys alone.
        nullable = pyarrow.schema([field.with_nullable(True) for field in tables[0].schema])
        rows = pyarrow.concat_tables(
            [tables[0].cast(nullable), tables[1]], promote_options="permissive"
        )
        flags = [False] * len(there) + [True] * len(gone)
        return rows.append_column(_GONE, pyarrow.array(flags, pyarrow.bool_()))

    def _merge(self, batch: SinkBatch, made: Any) -> None:
        columns = self._columns
        same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in columns.key)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in columns.names}
        others = {_quoted(name): f"s.{_quoted(name)}" for name in columns.others}
        merge = self._table.merge(
            made,
            same,
            source_alias="s",
            target_alias="t",
            # Files without these keys are left alone.
            streamed_exec=False,
            commit_properties=self._properties(batch),
        )
        merge = merge.when_matched_delete(f"s.{_GONE}")
        if others:
            merge = merge.when_matched_update(others)
        version = self._table.version()
        merge.when_not_matched_insert(values, f"NOT s.{_GONE}").execute()
        if self._table.version() == version:
            # A merge that changes no row commits nothing, and so no position.
            self._append(batch, self._rows.table(()))

    def close(self) -> None:
        """Nothing is open between two calls."""


def _require_changes(columns: ArrowColumns, table: Any) -> None:
    """See that rows may be changed, where they are to be."""
    is_fixed = table.metadata().configuration.get("delta.appendOnly", "").lower() == "true"
    if columns.key and is_fixed:
        raise SinkUnusableError(
            f"table {columns.table} is set to delta.appendOnly; leave out key=, or set it to false"
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _schema_of(columns: ArrowColumns) -> Any:
    """The schema of a table to be made, with what Delta has for what it does not have."""
    import pyarrow
    from pyarrow import types

    fields = []
    for field in ArrowRows(columns).schema:
        kind = pyarrow.string() if types.is_time(field.type) else field.type
        if types.is_duration(kind):
            raise SinkUnusableError(
                f"column {field.name} of table {columns.table}: Delta has no type for a duration; "
                "give it a number, and write row="
            )
        fields.append(field.with_type(kind))
    return pyarrow.schema(fields)


@contextmanager
def _told(columns: ArrowColumns, *, is_first: bool = False) -> Iterator[None]:
    """Say what an error of deltalake asks for; those of rows quote values, and are not shown."""
    from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

    try:
        yield
    except (DeltaProtocolError, SchemaMismatchError) as error:
        raise _unusable(columns, error) from error
    except DeltaError as error:
        if _UNSUPPORTED.search(str(error)):
            raise _unusable(columns, error) from error
        if _NOT_MET in str(error):
            reason = "a constraint of the table is not met"
            raise SinkRefusedError(reason, table=columns.table) from error
        if not _OF_STORE.search(str(error)):
            raise
        raise _of_store(error, columns, is_first=is_first) from error
    except OSError as error:
        raise _of_store(error, columns, is_first=is_first) from error


def _unusable(columns: ArrowColumns, error: Exception) -> SinkUnusableError:
    return SinkUnusableError(
        f"{columns.table}: {said(error)}; name a table that deltalake can write to"
    )


def _of_store(error: Exception, columns: ArrowColumns, *, is_first: bool) -> Exception:
    if is_first and _NO_RIGHT.search(str(error)):
        return SinkUnusableError(
            f"{columns.table}: {said(error)}; see to the address, the rights and storage_options="
        )
    return SinkUnavailableError(f"{columns.table}: {said(error)}")
