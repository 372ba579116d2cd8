"""Protocol of external sinks: tables outside of Kafka that store rows and positions.

Rows and the position up to which records were read are committed together, in one transaction of
the sink. So no record is committed twice: a position moves only from the value that the writer
expects. If the expectation is wrong, because another worker has the task or because the result of a
commit was lost, the write fails, and the writer reads the positions again.

A custom sink needs only two methods besides writing rows: see docs/sinks.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from headrace.topology.errors import TopologyError, type_of
from headrace.topology.windows import duration_ms


class SinkFencedError(Exception):
    """A position is not the expected position; no rows were written.

    Raise it in `SinkConnection.write`. The task reads the positions again, and continues from them
    if this worker still owns the task.
    """


class SinkUnavailableError(Exception):
    """The sink does not answer, or the outcome of a write is unknown.

    Raise it if another attempt may succeed: after a lost connection, a timeout or a lock conflict.
    The task reads the positions again after a while, and retries without limit. The message is
    logged, so it must not contain data of rows.

    Args:
        timed_out: whether the sink aborted a statement that exceeded its time limit: the task
            retries immediately, with half as many rows.
    """

    def __init__(self, reason: str = "", *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


class SinkUnusableError(Exception):
    """The sink cannot be used: for example, a table, a column or a permission is missing.

    Raise it if an operator has to fix the cause; it stops the application with its message.
    """


class SinkRefusedError(Exception):
    """The sink rejects a row because of its content; no row of the batch was written.

    Raise it in `SinkConnection.write`. The caller finds the row in the batch and asks the setting
    ``production.exception.handler`` about it; the other rows are written.

    Args:
        reason: the problem, without the values of the row.
        table: the table of the row.
        column: the column that rejects the row, if known.
        offset: the row's offset, if known.
        others: errors of all other rejected rows of the batch, each with its offset, if the sink
            has checked all rows: the rest is then written as one batch.

    Examples:
        >>> print(SinkRefusedError("NOT NULL constraint failed", table="orders", column="price"))
        table orders, column price: NOT NULL constraint failed
    """

    def __init__(
        self,
        reason: str,
        *,
        table: str | None = None,
        column: str | None = None,
        offset: int | None = None,
        others: Sequence[SinkRefusedError] | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_of_function = False
        """Whether the cause is an error of a user's function."""
        self.table = table
        self.column = column
        self.offset = offset
        self.others = others

    def __str__(self) -> str:
        named = {"table": self.table, "column": self.column}
        where = ", ".join(f"{what} {name}" for what, name in named.items() if name is not None)
        return f"{where}: {self.reason}" if where else self.reason


class SinkRow(NamedTuple):
    """Record for an external sink; a tuple for speed, because every record creates it.

    Args:
        key: the decoded key.
        value: the decoded value; None if a table has deleted the row.
        timestamp: milliseconds since 1970.
        offset: the record's offset.
    """

    key: Any
    value: Any
    timestamp: int
    offset: int

    def __repr__(self) -> str:
        return f"SinkRow(timestamp={self.timestamp}, offset={self.offset})"


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """Rows of a partition, and the positions before and after them.

    Args:
        source: identifier of the positions: a topic with its id; store it unchanged.
        partition: partition of that topic.
        expected: the position before the batch; None if no position is stored.
        next: the position after the batch.
        rows: the rows in the order of their offsets; may be empty.
    """

    source: str
    partition: int
    expected: int | None
    next: int
    rows: Sequence[SinkRow] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatching:
    """Limits of the rows of a partition that are collected, over many commits, into a large batch.

    Collected rows are in memory. Neither the sink's position nor the consumer group's offset moves
    past them, so a worker that dies loses no rows, and its successor reads those records again.
    Rows are written earlier if the worker stops, if the partition is revoked, or if other tasks
    wait for its offsets (`repartition.lag.max.records`).

    Args:
        every: maximum age of the first row of a batch.
        max_rows: maximum number of rows.
        max_bytes: approximate maximum of their memory: about 1,000 bytes per row more than its
            record.

    Raises:
        TopologyError: a number is not positive.

    Examples:
        >>> SinkBatching(every=timedelta(minutes=5)).every_s
        300.0
    """

    every: timedelta
    max_rows: int = 100_000
    max_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        duration_ms("every", self.every, at_least=1)
        for name in ("max_rows", "max_bytes"):
            limit = getattr(self, name)
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
                shown = limit if isinstance(limit, int) else type_of(limit)
                raise TopologyError(f"{name} must be a whole number of at least 1, not {shown}")

    @property
    def every_s(self) -> float:
        """`every` in seconds."""
        return self.every.total_seconds()


class SinkConnection(Protocol):
    """Connection to an external sink, used by a single thread at a time.

    A sink that performs better with rare, large writes has `batching`, a `SinkBatching`; without
    it, rows are written with each commit. A sink that can list the names under which positions are
    stored, of all nodes and applications, has a method `keepers`; it returns none if the target has
    no rows. If a node without positions finds another application's positions there, it logs a
    warning.
    """

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        """Return the stored positions of partitions; partitions without a position are missing.

        Args:
            source: the identifier in batches.

        Raises:
            SinkUnavailableError: the sink does not answer.
        """

    def write(self, batch: SinkBatch, /) -> None:
        """Write the rows of a batch and move its position atomically.

        Raises:
            SinkFencedError: the position is not the expected position.
            SinkRefusedError: a row is rejected because of its content.
            SinkUnavailableError: the sink does not answer, or the outcome is unknown.
        """

    def close(self) -> None:
        """Close the connection and roll back uncommitted writes."""


class ExternalSink(Protocol):
    """Destination of rows outside of Kafka; shared by all tasks, so it holds no connection.

    Examples:
        >>> class Shelf:
        ...     keyed = True
        ...     rows, offsets = {}, {}
        ...     def open(self, name: str) -> SinkConnection:
        ...         return ShelfConnection(self)
        >>> class ShelfConnection(SinkConnection):
        ...     def __init__(self, shelf):
        ...         self.shelf = shelf
        ...     def positions(self, source, partitions):
        ...         return {p: self.shelf.offsets[p] for p in partitions if p in self.shelf.offsets}
        ...     def write(self, batch):
        ...         if self.shelf.offsets.get(batch.partition) != batch.expected:
        ...             raise SinkFencedError(f"{batch.source} has another writer")
        ...         self.shelf.rows |= {row.key: row.value for row in batch.rows}
        ...         self.shelf.offsets[batch.partition] = batch.next
        ...     def close(self):
        ...         pass
        >>> shelf: ExternalSink = Shelf()
        >>> batch = SinkBatch("prices", 0, None, 8, [SinkRow("tea", 3, 0, 7)])
        >>> shelf.open("app/prices").write(batch)
        >>> shelf.rows, shelf.offsets
        ({'tea': 3}, {0: 8})
    """

    @property
    def keyed(self) -> bool:
        """Whether a row replaces the row with the same key, and a null value deletes it."""

    def open(self, name: str, /) -> SinkConnection:
        """Connect to the sink.

        Args:
            name: the name under which positions are stored: the application and the node.

        Raises:
            SinkUnavailableError: the sink does not answer.
            SinkUnusableError: the sink cannot be used.
        """
