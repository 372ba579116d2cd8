"""`check_sink`: whether a sink of one's own keeps what is asked of it, by seeds.

What a worker, its successor and a zombie do to a sink is done here in a random order: batches,
batches once more because an answer was lost, batches by one who believes in a position of before,
empty batches, connections that end, and processes that are killed while they write. Each record
must be there once in the end, and the positions where they were moved.
"""

from __future__ import annotations

import multiprocessing
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from zlib import crc32

from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkConnection,
    SinkFencedError,
    SinkRow,
    SinkUnavailableError,
)

T = TypeVar("T")

Read = Callable[[], Iterable[Any]]

PARTITIONS = 2
_ROWS_MAX = 4
_KILLED_AFTER_S = 0.05
_PATIENCE_S = 30.0


def _value(key: Any, value: Any) -> Any:  # noqa: ARG001
    return value


class SinkCheckError(AssertionError):
    """A sink does not do what is asked of it; the text says what, and with which seed."""


def check_sink(
    sink: ExternalSink,
    *,
    records: Sequence[tuple[Any, Any]],
    read: Read,
    as_read: Callable[[Any, Any], Any] = _value,
    seeds: int = 20,
    kills: int = 3,
    start: Literal["fork", "spawn"] = "fork",
) -> None:
    """Check a sink: it is written to, so give it a table of its own that is empty.

    Args:
        sink: to be checked.
        records: keys and values to write; one with a key should get some of them again, and some
            deleted.
        read: returns what the sink has: all rows.
        as_read: a record as `read` returns it, called as ``as_read(key, value)``.
        seeds: how many random orders are tried.
        kills: how many processes are killed while they write; 0 where the sink is in memory.
        start: how they are started. A library with threads of its own may not work in one that is
            forked: spawn them then, for which the sink must be picklable.

    Raises:
        SinkCheckError: a row is missing, doubled or torn from its position, or a writer that is
            wrong about the position was not refused.

    Example:
        >>> from headrace import MemorySink
        >>> sink = MemorySink()
        >>> records = [("a", 1), ("b", 2), ("a", 3)]
        >>> check_sink(sink, records=records, read=lambda: [r.value for r in sink.rows], kills=0)
    """
    name = f"check-{uuid.uuid4().hex[:12]}"
    written: list[tuple[Any, Any]] = []
    for seed in range(seeds + kills):
        run = _Run(sink, f"{name}/step", f"{name}@{seed}", records, random.Random(seed), seed)  # noqa: S311
        if seed >= seeds:
            run.be_killed(start)
        run.go()
        written += run.written
        _compare(sink, written, read, as_read, seed)


@dataclass(slots=True)
class _Run:
    """One order of events, on a source of its own."""

    sink: ExternalSink
    name: str
    source: str
    records: Sequence[tuple[Any, Any]]
    dice: random.Random
    seed: int
    written: list[tuple[Any, Any]] = field(default_factory=list)
    _logs: dict[int, list[SinkRow]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in self.records:
            log = self._logs.setdefault(crc32(repr(key).encode()) % PARTITIONS, [])
            # Marks of transactions have offsets, too.
            offset = (log[-1].offset + 1 if log else 0) + self.dice.randrange(2)
            log.append(SinkRow(key, value, 1_700_000_000_000 + offset, offset))
        self.written = [(row.key, row.value) for log in self._logs.values() for row in log]

    # -- what is done to it --------------------------------------------------------------------

    def go(self) -> None:
        """Write everything, with what may come between."""
        for partition in self._logs:
            self._fill(partition)

    def _fill(self, partition: int) -> None:
        connection = self._open()
        try:
            position = self._position(connection, partition)
            begin, stale = position, position
            while (batch := self._next(partition, position)) is not None:
                self._write(connection, batch)
                stale, position = position, batch.next
                act = self.dice.randrange(5)
                if act == 0:
                    self._refused(connection, batch, "a batch that was written already")
                elif act == 1 and stale != position:
                    self._as_zombie(batch, stale)
                elif act == 2:
                    connection.close()
                    connection = self._open()
                elif act == 3 and begin is not None:
                    wrong = SinkBatch(self.source, partition, None, batch.next + 1, batch.rows)
                    self._refused(connection, wrong, "a batch of one who knows of no position")
                found = self._position(connection, partition)
                if found != position:
                    self._fail(f"the position is {found}, and was moved to {position}")
                begin = position
        finally:
            connection.close()

    def _as_zombie(self, batch: SinkBatch, stale: int | None) -> None:
        """One who was given up writes on, from where he believes to be."""
        zombie = self._open()
        try:
            late = SinkBatch(self.source, batch.partition, stale, batch.next + 2, batch.rows)
            self._refused(zombie, late, "a zombie's batch")
        finally:
            zombie.close()

    def be_killed(self, start: Literal["fork", "spawn"]) -> None:
        """Let processes write, and kill them."""
        context: Any = multiprocessing.get_context(start)
        for _ in range(3):
            is_open = context.Event()
            process = context.Process(target=self._go_on, args=(is_open,))
            process.start()
            while process.is_alive() and not is_open.wait(0.05):
                pass
            time.sleep(self.dice.random() * _KILLED_AFTER_S)
            process.kill()
            process.join()

    def _go_on(self, is_open: Any) -> None:
        """Write in a process of its own, which says when all that it needs is loaded."""
        self._open().close()
        is_open.set()
        self.go()

    # -- its calls -----------------------------------------------------------------------------

    def _open(self) -> SinkConnection:
        return _insisting(lambda: self.sink.open(self.name))

    def _position(self, connection: SinkConnection, partition: int) -> int | None:
        asked = list(range(PARTITIONS))
        found: Mapping[int, int] = _insisting(lambda: connection.positions(self.source, asked))
        return found.get(partition)

    def _next(self, partition: int, position: int | None) -> SinkBatch | None:
        rest = [row for row in self._logs[partition] if row.offset >= (position or 0)]
        if not rest:
            return None
        rows = rest[: self.dice.randrange(_ROWS_MAX + 1)]
        behind = rest[len(rows)].offset if len(rows) < len(rest) else rest[-1].offset + 1
        if not rows and behind == position:
            rows, behind = rest[:1], rest[0].offset + 1
        return SinkBatch(self.source, partition, position, behind, rows)

    def _write(self, connection: SinkConnection, batch: SinkBatch) -> None:
        try:
            connection.write(batch)
        except SinkFencedError as error:
            self._fail(f"a batch was refused from the right position, {batch.expected}: {error}")

    def _refused(self, connection: SinkConnection, batch: SinkBatch, what: str) -> None:
        try:
            connection.write(batch)
        except SinkFencedError:
            return
        self._fail(f"{what} was taken; compare the position with `expected`, and raise "
                   "SinkFencedError where it is another")  # fmt: skip

    def _fail(self, what: str) -> None:
        raise SinkCheckError(f"seed {self.seed}: {what}")


def _insisting(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: who was killed may have left a lock behind."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except SinkUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _compare(
    sink: ExternalSink,
    written: Sequence[tuple[Any, Any]],
    read: Read,
    as_read: Callable[[Any, Any], Any],
    seed: int,
) -> None:
    rows = list(written)
    if sink.keyed:
        last = {repr(key): (key, value) for key, value in written}
        rows = [(key, value) for key, value in last.values() if value is not None]
    expected = sorted(repr(as_read(key, value)) for key, value in rows)
    found = sorted(map(repr, read()))
    if found == expected:
        return
    missing, more = _without(expected, found), _without(found, expected)
    raise SinkCheckError(
        f"seed {seed}: {len(missing)} rows are missing and {len(more)} are too many or others; "
        "write rows and position in one transaction"
    )


def _without(rows: Sequence[str], others: Sequence[str]) -> list[str]:
    left = list(others)
    rest = []
    for row in rows:
        if row in left:
            left.remove(row)
        else:
            rest.append(row)
    return rest
