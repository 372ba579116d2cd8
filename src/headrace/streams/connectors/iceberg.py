"""Sink of rows to an Apache Iceberg table, with the positions in the snapshots' summaries.

Each commit is conditional: the catalog commits only if the table's branch is still at the snapshot
whose position was checked. After a conflict, pyiceberg retries by applying the same files to the
newer snapshot; here it does so only if the position in that snapshot is still the expected
position.

Each commit stores the positions twice. The summary of a snapshot is rolled back together with the
rows if the table is rolled back to an older snapshot. But it is lost if old snapshots expire and
only other writers have committed since; then the position comes from a table property, unless that
belongs to a later commit than the newest snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
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
from headrace.streams.connectors.sqlite import fenced, require
from headrace.topology.external_sink import (
    SinkBatch,
    SinkBatching,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.operators.columns import Row, Types, require_bool
from headrace.topology.windows import duration_ms

# Catalogs with a time-out: pyiceberg's REST client has none, and no setting for it.


def load_bounded(given: str | Mapping[str, str], timeout_s: float) -> Any:
    """Load a catalog by name or properties, with a time limit for requests of a REST catalog."""
    from pyiceberg.catalog import CatalogType, infer_catalog_type, load_catalog
    from pyiceberg.utils.config import Config, merge_config

    name: str | None = given if isinstance(given, str) else None
    properties: dict[str, Any] = {} if isinstance(given, str) else dict(given)
    name = name or properties.pop("name", None)
    config = Config()
    named = name or config.get_default_catalog_name()
    merged: Any = merge_config(config.get_catalog_config(named) or {}, properties)
    kind = merged.get("type") or None
    if "py-catalog-impl" not in merged and isinstance(merged.get("uri"), str):
        kind = kind or infer_catalog_type(named, merged)
        if kind in (CatalogType.REST, CatalogType.REST.value):
            return _bounded(timeout_s)(named, **_without_line_ends(merged))
    return load_catalog(name, **properties)


def _without_line_ends(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with stripped secrets: an error of requests would quote a bad header."""
    found = dict(properties)
    for name in ("token", "credential"):
        if isinstance(found.get(name), str):
            found[name] = found[name].strip()
            if not found[name].isprintable():
                raise ValueError(f"its {name} has line ends or other unprintable characters")
    return found


def _bounded(timeout_s: float) -> Any:
    from pyiceberg.catalog.rest import RestCatalog
    from requests import Response
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        """HTTP adapter with a default time-out."""

        def send(self, *given: Any, **options: Any) -> Response:
            if options.get("timeout") is None:
                options["timeout"] = timeout_s
            return super().send(*given, **options)

    class BoundedRestCatalog(RestCatalog):  # type: ignore[misc]
        """REST catalog whose sessions have a time-out."""

        def _create_session(self) -> Any:
            session = super()._create_session()
            for prefix, adapter in list(session.adapters.items()):
                if type(adapter) is HTTPAdapter:  # keep adapters that sign requests
                    session.mount(prefix, Adapter())
            return session

    return BoundedRestCatalog


Catalog = str | Mapping[str, str] | Callable[[], Any]

_BRANCH = "main"
_PERMANENT = re.compile("unable to open database|authentication failed|does not exist|no such")
"""Errors of a catalog's database that waiting does not fix, if it was never reached before."""


class IcebergSink:
    """Sink that writes rows to an Apache Iceberg table: appended, or upserted by key.

    Rows and position are a single commit of the table. Each commit writes several files, so rows
    are collected into batches.

    Args:
        catalog: its name in pyiceberg's configuration, its properties such as ``{"type": "rest",
            "uri": ...}``, or a function that returns a pyiceberg catalog, called for each
            connection.
        table: the table's name with its namespace: ``"shop.orders"``.
        columns: a dataclass, `msgspec.Struct`, `TypedDict` or named tuple, or types by name: of
            Python, of pyarrow, or a name such as ``"int32"``.
        key: the key columns; without them rows are appended. Each commit rewrites the files that
            contain rows with the batch's keys.
        row: called as ``row(key, value)``; returns the object that contains the columns. None takes
            them from the value and the key.
        create: whether to create the table and its namespace if they do not exist.
        partition_by: the partition columns of a table that is created.
        every: maximum time to collect rows for a commit.
        max_rows: number of rows that triggers an earlier commit.
        max_bytes: estimated memory of the rows that triggers an earlier commit.
        timeout: time limit of retries of a commit that conflicts with other writers, and of each
            response of a REST catalog that is loaded here.

    Raises:
        TopologyError: the arguments are inconsistent.

    Examples:
        >>> import tempfile
        >>> from pyiceberg.catalog import load_catalog
        >>> from headrace import IcebergSink, StreamsBuilder, TopologyTestDriver, serdes
        >>> path = tempfile.mkdtemp()
        >>> catalog = {
        ...     "type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"
        ... }
        >>> sink = IcebergSink(catalog, "texts.words", {"word": str, "at": int}, create=True)
        >>> builder = StreamsBuilder()
        >>> builder.stream("words", key=serdes.string).to_sink(sink, name="keep-words")
        >>> with TopologyTestDriver(builder.build(), real_sinks=True) as driver:
        ...     driver.input("words").send_many([("rose", {"word": "rose", "at": 1})])
        >>> load_catalog(**catalog).load_table("texts.words").scan().to_arrow().to_pylist()
        [{'word': 'rose', 'at': 1}]
    """

    def __init__(
        self,
        catalog: Catalog,
        table: str,
        columns: type | Types,
        *,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        create: bool = False,
        partition_by: str | Sequence[str] = (),
        every: timedelta = timedelta(minutes=1),
        max_rows: int = 100_000,
        max_bytes: int = 128 << 20,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._catalog = catalog
        self._columns = ArrowColumns(table, columns, key, row)
        self.keyed = bool(self._columns.key)
        self._create = require_bool("create", create)
        self._parts = partitioning(self._columns, partition_by, create=create)
        self.batching = SinkBatching(every=every, max_rows=max_rows, max_bytes=max_bytes)
        self._timeout_s = duration_ms("timeout", timeout, at_least=1) / 1000
        self._was_open = False

    def __repr__(self) -> str:
        return f"IcebergSink({self._columns.table!r})"

    def open(self, name: str, /) -> _IcebergConnection:
        """Load the table from its catalog, and check that it has the columns."""
        for module in ("pyiceberg", "pyarrow"):
            require(module, "IcebergSink", "iceberg")
        with _converted(self._columns.table, is_first=not self._was_open):
            catalog = self._connect()
            try:
                table = self._load(catalog)
                if not self._was_open:
                    require_writable(f"{table.location()}/metadata")
                rows = ArrowTableConverter(self._columns, table.schema().as_arrow())
            except BaseException:
                catalog.close()
                raise
        self._was_open = True
        return _IcebergConnection(
            table,
            name,
            self._columns,
            rows=rows,
            schema=table.metadata.current_schema_id,
            timeout_s=self._timeout_s,
            batching=self.batching,
            catalog=catalog,
        )

    def _connect(self) -> Any:
        if callable(self._catalog):
            return self._catalog()
        try:
            return load_bounded(self._catalog, self._timeout_s)
        except ValueError as error:
            raise SinkUnusableError(
                f"the catalog of table {self._columns.table} cannot be loaded: {message_of(error)}"
            ) from error

    def _load(self, catalog: Any) -> Any:
        from pyiceberg.exceptions import (
            CommitFailedException,
            NoSuchTableError,
            TableAlreadyExistsError,
        )

        name = self._columns.table
        if self._create and not self._was_open and not catalog.table_exists(name):
            schema = schema_of(self._columns, "Iceberg")
            require_writable(catalog.properties.get("warehouse", "none://"))
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            with (
                # Another worker may have created it meanwhile.
                suppress(TableAlreadyExistsError, CommitFailedException),
                catalog.create_table_transaction(name, schema) as transaction,
                transaction.update_spec() as spec,
            ):
                for name_of_part in self._parts:
                    spec.add_identity(name_of_part)
        try:
            return catalog.load_table(name)
        except NoSuchTableError as error:
            raise SinkUnusableError(
                f"table {name} does not exist in the catalog. Create it, or give create=True"
            ) from error


@dataclass(eq=False, repr=False)
class _IcebergConnection(TableConnection):
    catalog: Any

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        with _converted(self.columns.table):
            self._refresh()
        found = _positions(self.table.metadata, self._entry(source))
        return {p: found[p] for p in partitions if p in found}

    def write(self, batch: SinkBatch, /) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        columns, keys = self.columns, None
        rows = batch.rows
        if columns.key:
            rows, removed = columns.last_of_each_key(rows)
            keys = self.rows.keys([*rows, *removed])
        made = self.rows.table(rows)

        def is_conflict(error: Exception) -> bool:
            return isinstance(error, (CommitFailedException, ValidationException))

        with _converted(columns.table):
            self.repeat(lambda: self._commit(batch, made, keys), is_conflict)

    def _refresh(self) -> None:
        """Raise SinkUnavailableError if the table was dropped and re-created."""
        try:
            self.table.refresh()
        except ValueError as error:  # the table's UUID has changed
            if "UUID" not in str(error):
                raise
            raise SinkUnavailableError(
                f"table {self.columns.table} was dropped and re-created"
            ) from error

    def _entry(self, source: str) -> str:
        return f"headrace/{self.name}/{source}"

    def _commit(self, batch: SinkBatch, made: Any, keys: Any) -> None:
        from pyiceberg.exceptions import ValidationException

        self._refresh()
        metadata = self.table.metadata
        if metadata.current_schema_id != self.schema:
            raise SinkUnavailableError(f"the columns of {self.columns.table} have changed")
        # Replaced rows are computed for a single snapshot.
        replaces = keys is not None and len(keys) > 0
        pinned = metadata if replaces else None
        guard = _Guard(self.catalog, self._entry(batch.source), batch, pinned)
        guard.require(metadata)
        self.table.catalog = guard
        try:
            with self.table.transaction() as transaction:
                if replaces:
                    self._replace(transaction, made, keys)
                else:
                    transaction.append(made)
        except ValidationException:
            guard.require_again()
            raise
        finally:
            self.table.catalog = self.catalog

    def _replace(self, transaction: Any, made: Any, keys: Any) -> None:
        """Delete the rows with these keys, and append their replacements."""
        import pyarrow
        from pyiceberg.expressions import AlwaysTrue, And, In

        chosen: Any = AlwaysTrue()
        for name in keys.column_names:
            chosen = And(chosen, In(name, keys.column(name).unique().to_pylist()))
        scan = self.table.scan(row_filter=chosen)
        if len(keys.column_names) == 1:
            scan = scan.select(*keys.column_names).update(limit=1)
        found = scan.to_arrow()
        if not len(found):
            transaction.append(made)
            return
        if len(keys.column_names) > 1:
            # The filter also matches other combinations of these values: keep those rows.
            stored = _without_keys(found, keys).cast(made.schema)
            made = pyarrow.concat_tables([stored, made])
        transaction.overwrite(made, overwrite_filter=chosen)

    def close(self) -> None:
        self.catalog.close()


class _Guard:
    """Catalog wrapper for a single write that commits only if the position is as expected.

    Args:
        pinned: metadata of the only snapshot to commit onto; None allows any snapshot.
    """

    def __init__(self, catalog: Any, entry: str, batch: SinkBatch, pinned: Any) -> None:
        self._catalog = catalog
        self._entry = entry
        self._batch = batch
        self._pinned = pinned
        self._seen: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        """Commit the updates and the new position, if position and snapshot are as expected."""
        from pyiceberg.exceptions import ValidationException
        from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

        metadata = self._seen = table.metadata
        head = metadata.current_snapshot_id
        is_another = self._pinned is not None and head != self._pinned.current_snapshot_id
        if is_another or self._is_moved(metadata):
            # Only for this error pyiceberg deletes the files that it has written.
            raise ValidationException("another writer has committed")
        positions = _positions(metadata, self._entry)
        positions[self._batch.partition] = self._batch.next
        text = " ".join(f"{p}={position}" for p, position in sorted(positions.items()))
        others = [one for one in requirements if not isinstance(one, AssertRefSnapshotId)]
        snapshot, at = _last_snapshot(updates)
        stored = f"{text} @{snapshot.sequence_number}"
        return self._catalog.commit_table(
            table,
            (*others, AssertRefSnapshotId(ref=_BRANCH, snapshot_id=head)),
            (
                *updates[:at],
                _with_summary(snapshot, self._entry, text),
                *updates[at + 1 :],
                SetPropertiesUpdate(updates={self._entry: stored}),
            ),
        )

    def _is_moved(self, metadata: Any) -> bool:
        found = _positions(metadata, self._entry).get(self._batch.partition)
        return found != self._batch.expected

    def require(self, metadata: Any) -> None:
        if self._is_moved(metadata):
            raise fenced(self._batch, "the table's snapshots")

    def require_again(self) -> None:
        """Check the position in the metadata of the last commit attempt."""
        if self._seen is not None:
            self.require(self._seen)


def _last_snapshot(updates: Sequence[Any]) -> tuple[Any, int]:
    from pyiceberg.table.update import AddSnapshotUpdate

    found = [at for at, one in enumerate(updates) if isinstance(one, AddSnapshotUpdate)]
    if not found:
        raise AssertionError("a commit without a snapshot does not conflict with other commits")
    return updates[found[-1]].snapshot, found[-1]


def _with_summary(snapshot: Any, entry: str, text: str) -> Any:
    from pyiceberg.table.snapshots import Summary
    from pyiceberg.table.update import AddSnapshotUpdate

    stored = {**snapshot.summary.additional_properties, entry: text}
    summary = Summary(snapshot.summary.operation, **stored)
    return AddSnapshotUpdate(snapshot=snapshot.model_copy(update={"summary": summary}))


def _positions(metadata: Any, entry: str) -> dict[int, int]:
    """Return the positions of a sink from the newest snapshot that contains them."""
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    if metadata.current_snapshot_id not in snapshots:
        return {}
    head = last = snapshots[metadata.current_snapshot_id]
    while True:
        if last.summary is not None and last.summary.additional_properties.get(entry):
            return _read(last.summary.additional_properties[entry])
        if last.parent_snapshot_id not in snapshots:
            break
        last = snapshots[last.parent_snapshot_id]
    # Earlier snapshots have expired, unless this is the table's first snapshot.
    text, _, sequence_number = metadata.properties.get(entry, "").rpartition(" @")
    is_whole = last.sequence_number == 1
    if is_whole or not text or int(sequence_number) > (head.sequence_number or 0):
        return {}
    return _read(text)


def _read(text: str) -> dict[int, int]:
    pairs = (one.partition("=") for one in text.split())
    return {int(partition): int(position) for partition, _, position in pairs}


def _without_keys(rows: Any, keys: Any) -> Any:
    names = keys.column_names
    removed = set(zip(*(keys.column(name).to_pylist() for name in names), strict=True))
    found_keys = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    return rows.filter([key not in removed for key in found_keys])


@contextmanager
def _converted(table: str, *, is_first: bool = False) -> Iterator[None]:
    from pyiceberg import exceptions

    try:
        yield
    except (exceptions.NoSuchTableError, exceptions.NotInstalledError) as error:
        raise SinkUnusableError(f"table {table}: {message_of(error)}") from error
    except (
        exceptions.UnauthorizedError,
        exceptions.ForbiddenError,
        exceptions.OAuthError,
    ) as error:
        kind = SinkUnusableError if is_first else SinkUnavailableError
        raise kind(
            f"table {table}: {message_of(error)}. Check the permissions and the catalog"
        ) from error
    except (exceptions.RESTError, exceptions.WaitingForLockException, OSError) as error:
        raise SinkUnavailableError(f"table {table}: {message_of(error)}") from error
    except Exception as error:
        # Checked by name: only SQL catalogs require sqlalchemy.
        if type(error).__module__ != "sqlalchemy.exc":
            raise
        text = f"table {table}: the catalog's database: {message_of(getattr(error, 'orig', error))}"
        is_permanent = is_first and _PERMANENT.search(text)
        raise (SinkUnusableError if is_permanent else SinkUnavailableError)(text) from error
