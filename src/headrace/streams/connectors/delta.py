"""Sink of rows to a Delta Lake table, with the positions in the table's own log.

A position is the version of an application transaction (`txn`) that is committed with the rows. The
log rejects concurrent commits of the same application transaction. The position is therefore
compared at the table version that the commit is based on, and the commit itself detects a commit of
another writer in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.streams.connectors.arrow import (
    ArrowColumns,
    ArrowTableConverter,
    TableConnection,
    message_of,
    partitioning,
    schema_of,
)
from headrace.streams.connectors.locations import require_writable
from headrace.streams.connectors.sqlite import fenced, quoted, require
from headrace.topology.external_sink import (
    SinkBatch,
    SinkBatching,
    SinkRefusedError,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.operators.columns import Row, Types, require_bool
from headrace.topology.windows import duration_ms

Options = Mapping[str, str]

_DELETED = "headrace_deleted"
"""Column of a merge that marks deleted rows."""
_OF_STORE = re.compile(
    r"object store|Generic (S3|GCS|MicrosoftAzure|HTTP|LocalFileSystem)"
    r"|Invalid table version|File not found|No files in log|older than the existing snapshot"
)
"""Errors that another attempt may fix, for example because it reads the log from its beginning."""
_NO_RIGHT = re.compile(r"\b(401|403)\b|permission denied|denied|unauthenticated|NoSuchBucket", re.I)
_UNSUPPORTED = re.compile(r"unsupported|not supported|append-only", re.I)
_NOT_MET = "failed validation check"


class DeltaSink:
    """Sink that writes rows to a Delta Lake table: appended, or merged by key.

    Rows and position are a single commit of the table's log. Each commit writes at least one file,
    so rows are collected into batches. Times of day are written as text, because Delta has no such
    type.

    Args:
        uri: the table's location: a directory, or a URL such as ``s3://bucket/orders``.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name: of
            Python, of pyarrow, or a name such as ``"int32"``.
        key: the key columns; without them rows are appended. A merge rewrites the files that
            contain rows with the batch's keys.
        row: called as ``row(key, value)``; returns the object that contains the columns. None takes
            them from the value and the key.
        create: whether to create the table if it does not exist.
        partition_by: the partition columns of a table that is created.
        every: maximum time to collect rows for a commit.
        max_rows: number of rows that triggers an earlier commit.
        max_bytes: estimated memory of the rows that triggers an earlier commit.
        storage_options: options of deltalake for the store, such as credentials, or a function that
            returns them, called for each connection.
        timeout: time limit of a request to the store, and of retries of a commit that conflicts
            with other writers.

    Raises:
        TopologyError: the arguments are inconsistent.

    Examples:
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
        self.keyed = bool(self._columns.key)
        self._create = require_bool("create", create)
        self._parts = partitioning(self._columns, partition_by, create=create)
        self.batching = SinkBatching(every=every, max_rows=max_rows, max_bytes=max_bytes)
        self._options = storage_options
        self._timeout_s = duration_ms("timeout", timeout, at_least=1) / 1000
        self._was_open = False

    def __repr__(self) -> str:
        return f"DeltaSink({self._uri!r})"

    def open(self, name: str, /) -> _DeltaConnection:
        """Load the table's log, and check that the table has the columns."""
        for module in ("deltalake", "pyarrow"):
            require(module, "DeltaSink", "delta")
        import pyarrow

        with _converted(self._columns, is_first=not self._was_open):
            if not self._was_open:
                require_writable(f"{self._uri}/_delta_log")
            table = self._load()
            _require_changes(self._columns, table)
            rows = ArrowTableConverter(self._columns, pyarrow.schema(table.schema().to_arrow()))
        self._was_open = True
        return _DeltaConnection(
            table,
            name,
            self._columns,
            rows=rows,
            schema=table.schema(),
            timeout_s=self._timeout_s,
            batching=self.batching,
        )

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
                # Perhaps a lost mount: the table must not be re-created empty.
                raise SinkUnavailableError(message_of(error)) from error
            if not self._create:
                raise SinkUnusableError(
                    f"Delta table {self._uri} does not exist. Create it, or give create=True"
                ) from error
        DeltaTable.create(
            self._uri,
            _schema_of(self._columns),
            mode="ignore",
            partition_by=self._parts or None,
            storage_options=options,
        )
        return DeltaTable(self._uri, storage_options=options)


class _DeltaConnection(TableConnection):
    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        with _converted(self.columns):
            self.table.update_incremental()
            found = {
                p: self.table.transaction_version(self._transaction_id(source, p))
                for p in partitions
            }
        return {p: position for p, position in found.items() if position is not None}

    def write(self, batch: SinkBatch, /) -> None:
        from deltalake.exceptions import CommitFailedError

        commit = self._merge if self.columns.key and batch.rows else self._append
        made = self._merged(batch) if commit == self._merge else self.rows.table(batch.rows)

        def attempt() -> None:
            self.table.update_incremental()
            self._require(batch)
            commit(batch, made)

        def is_conflict(error: Exception) -> bool:
            return isinstance(error, CommitFailedError) and not _UNSUPPORTED.search(str(error))

        with _converted(self.columns):
            self.repeat(attempt, is_conflict)

    def _transaction_id(self, source: str, partition: int) -> str:
        return f"headrace/{self.name}/{source}/{partition}"

    def _require(self, batch: SinkBatch) -> None:
        """Check that position and schema of the loaded table version match the batch."""
        found = self.table.transaction_version(self._transaction_id(batch.source, batch.partition))
        if found != batch.expected:
            raise fenced(batch, f"the log of {self.columns.table}")
        if self.table.schema() != self.schema:
            raise SinkUnavailableError(f"the columns of {self.columns.table} have changed")

    def _properties(self, batch: SinkBatch) -> Any:
        from deltalake import CommitProperties, Transaction

        # Without a last-updated time it never expires, regardless of the table's retention setting.
        transaction_id = self._transaction_id(batch.source, batch.partition)
        return CommitProperties(app_transactions=[Transaction(transaction_id, batch.next)])

    def _append(self, batch: SinkBatch, made: Any) -> None:
        from deltalake import write_deltalake

        properties = self._properties(batch)
        write_deltalake(self.table, made, mode="append", commit_properties=properties)

    def _merged(self, batch: SinkBatch) -> Any:
        """Return a table of all rows with keys, and a column that marks the deleted rows."""
        import pyarrow

        upserted, removed = self.columns.last_of_each_key(batch.rows)
        tables = [self.rows.table(upserted), self.rows.keys(removed)]
        # Deleted rows have only their keys.
        nullable = pyarrow.schema([field.with_nullable(True) for field in tables[0].schema])
        rows = pyarrow.concat_tables(
            [tables[0].cast(nullable), tables[1]], promote_options="permissive"
        )
        flags = [False] * len(upserted) + [True] * len(removed)
        return rows.append_column(_DELETED, pyarrow.array(flags, pyarrow.bool_()))

    def _merge(self, batch: SinkBatch, made: Any) -> None:
        columns = self.columns
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in columns.key)
        values = {quoted(name): f"s.{quoted(name)}" for name in columns.names}
        others = {quoted(name): f"s.{quoted(name)}" for name in columns.others}
        merge = self.table.merge(
            made,
            same,
            source_alias="s",
            target_alias="t",
            # Files without these keys are not rewritten.
            streamed_exec=False,
            commit_properties=self._properties(batch),
        )
        merge = merge.when_matched_delete(f"s.{_DELETED}")
        if others:
            merge = merge.when_matched_update(others)
        version = self.table.version()
        merge.when_not_matched_insert(values, f"NOT s.{_DELETED}").execute()
        if self.table.version() == version:
            # A merge that changes no row commits nothing, and so no position.
            self._append(batch, self.rows.table(()))

    def close(self) -> None: ...


def _require_changes(columns: ArrowColumns, table: Any) -> None:
    is_fixed = table.metadata().configuration.get("delta.appendOnly", "").lower() == "true"
    if columns.key and is_fixed:
        raise SinkUnusableError(
            f"table {columns.table} is set to delta.appendOnly. Omit key=, or set it to false"
        )


def _schema_of(columns: ArrowColumns) -> Any:
    """Return the schema of a table to create; types that Delta lacks are replaced."""
    import pyarrow
    from pyarrow import types

    return pyarrow.schema(
        [
            field.with_type(pyarrow.string()) if types.is_time(field.type) else field
            for field in schema_of(columns, "Delta")
        ]
    )


@contextmanager
def _converted(columns: ArrowColumns, *, is_first: bool = False) -> Iterator[None]:
    """Convert errors of deltalake to sink errors; messages that quote values are not included."""
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
        f"{columns.table}: {message_of(error)}. Name a table that deltalake can write to"
    )


def _of_store(error: Exception, columns: ArrowColumns, *, is_first: bool) -> Exception:
    if is_first and _NO_RIGHT.search(str(error)):
        return SinkUnusableError(
            f"{columns.table}: {message_of(error)}. Correct the address, the permissions or "
            "storage_options="
        )
    return SinkUnavailableError(f"{columns.table}: {message_of(error)}")
