"""The seam of external sinks: what a table outside of Kafka is asked, and what it is handed.

Rows and the place up to which records were read become final together, in one transaction of the
sink's own. So nothing is committed twice: a position is moved only from where the writer believes
it to be, and a writer that is wrong about that, because another one has the task by now or because
an answer of its own was lost, is told so and asks again.

A sink of one's own takes two methods more than its rows: see docs/beyond.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from headrace.topology.errors import TopologyError, type_of
from headrace.topology.windows import duration_ms


class SinkFencedError(Exception):
    """A position is not where the writer believed it to be; nothing was written.

    Raise it in `SinkConnection.write`. The task asks for the positions again, and goes on behind
    them if it is still this worker's.
    """


class SinkUnavailableError(Exception):
    """The sink does not answer, or nobody knows whether it has written.

    Raise it where another attempt may succeed: a lost connection, a time-out, a lock. The task
    asks for the positions again after a while, as often as it takes. The message is logged, so it
    says nothing of rows.

    Args:
        timed_out: whether the sink answers, and ended a statement that took longer than it may: the
            task tries again at once, with half as many rows.
    """

    def __init__(self, reason: str = "", *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


class SinkUnusableError(Exception):
    """The sink cannot be used as it is: a table or a column is missing, a right is not given.

    Raise it where a person has to put something right; it ends the application, with its message.
    """


class SinkRefusedError(Exception):
    """The sink refuses a row for what is in it; nothing of the batch was written.

    Raise it in `SinkConnection.write`. Who has written finds the row among those of the batch,
    and asks the setting ``production.exception.handler`` about it; the others are written.

    Args:
        reason: what is wrong, without the values of the row.
        table: where it was to go.
        column: the column that refuses it, where that is known.
        offset: the row's, where it is known which one it is.
        others: the refusals of all other rows of the batch that are refused, each with its offset,
            where the sink has looked at all of them: the rest is written as one batch then.

    Example:
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
        """Whether it only reports that a user's function has raised its cause."""
        self.table = table
        self.column = column
        self.offset = offset
        self.others = others

    def __str__(self) -> str:
        named = {"table": self.table, "column": self.column}
        where = ", ".join(f"{what} {name}" for what, name in named.items() if name is not None)
        return f"{where}: {self.reason}" if where else self.reason


class SinkRow(NamedTuple):
    """A record on its way out; one is made for each record, so it is a tuple.

    Args:
        key: decoded.
        value: decoded; None where a table has deleted the row.
        timestamp: milliseconds since 1970.
        offset: of the record that it is.
    """

    key: Any
    value: Any
    timestamp: int
    offset: int

    def __repr__(self) -> str:
        """Nothing of what is in it, which is nobody's business in a log."""
        return f"SinkRow(timestamp={self.timestamp}, offset={self.offset})"


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """Rows of one partition, and how its position moves with them.

    Args:
        source: what the positions are of: a topic with its id, to be kept as it is.
        partition: of that topic.
        expected: the position before it; None where there is none yet.
        next: the position behind it.
        rows: in the order of their offsets; there may be none.
    """

    source: str
    partition: int
    expected: int | None
    next: int
    rows: Sequence[SinkRow] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatching:
    """How long the rows of a partition are collected, over many commits, for one large batch.

    What is collected is in memory, and neither the sink's position nor the group's offset is past
    it; so a worker that dies loses none, and its successor reads those records again. They are
    written earlier where the worker stops or the partition is taken away, and where others wait
    for its offsets (`repartition.lag.max.records`).

    Args:
        every: how old the first row of a batch becomes.
        max_rows: with so many rows it is written earlier.
        max_bytes: the same of their memory, as far as it is known: some 1,000 bytes a row more than
            its record has.

    Raises:
        TopologyError: a number is not positive.

    Example:
        >>> SinkBatching(every=timedelta(minutes=5)).every_s
        300.0
    """

    every: timedelta
    max_rows: int = 100_000
    max_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        duration_ms("every", self.every, at_least=1)
        for name in ("max_rows", "max_bytes"):
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                said = given if isinstance(given, int) else type_of(given)
                raise TopologyError(f"{name} must be a whole number of at least 1, not {said}")

    @property
    def every_s(self) -> float:
        """`every` in seconds."""
        return self.every.total_seconds()


class SinkConnection(Protocol):
    """An open sink: used by one thread at a time.

    One that is better written to seldom has `batching`, a `SinkBatching`; without it, rows are
    written with each commit. One that can return the names that it keeps positions under, of all
    steps and applications, has a method `keepers`; it returns none if the target has no rows. If a
    step without positions finds those of another application there, it logs a warning.
    """

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        """The positions of those partitions that have one.

        Args:
            source: as it is in batches.

        Raises:
            SinkUnavailableError: the sink does not answer.
        """

    def write(self, batch: SinkBatch, /) -> None:
        """Write the rows of a batch and move its position, both or neither.

        Raises:
            SinkFencedError: the position is not the expected one.
            SinkRefusedError: a row is refused for what is in it.
            SinkUnavailableError: the sink does not answer, or the outcome is not known.
        """

    def close(self) -> None:
        """Let go of it; what is not committed is void."""


class ExternalSink(Protocol):
    """Where rows go outside of Kafka; shared by all tasks, so it holds nothing open itself."""

    @property
    def keyed(self) -> bool:
        """Whether a row takes the place of the one with its key, and a null value deletes it."""

    def open(self, name: str, /) -> SinkConnection:
        """Connect with it.

        Args:
            name: whose positions are asked for and moved: the application and the step.

        Raises:
            SinkUnavailableError: it does not answer.
            SinkUnusableError: it is not as it must be.
        """
