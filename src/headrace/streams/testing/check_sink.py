"""Check of a custom external sink: exactly-once writes under faults, by seeds.

`check_sink` does in random order what workers, their successors and zombies do to a sink: it writes
batches, repeats batches because a response was lost, writes batches with an outdated position,
writes empty batches, closes connections, and kills processes while they write. In the end each
record must exist once, and each position must be the last position that was written.
"""

from __future__ import annotations

import multiprocessing
import random
import time
import uuid
from collections import Counter
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
_AVAILABLE_WITHIN_S = 30.0


class SinkCheckError(AssertionError):
    """Raised if a sink violates its contract; the message contains the violation and the seed."""


def check_sink(
    sink: ExternalSink,
    *,
    records: Sequence[tuple[Any, Any]],
    read: Read,
    as_read: Callable[[Any, Any], Any] = lambda _, value: value,
    seeds: int = 20,
    kills: int = 3,
    start: Literal["fork", "spawn"] = "fork",
) -> None:
    """Check that a sink writes each row exactly once; the sink needs a separate, empty table.

    Args:
        sink: the sink to check.
        records: keys and values to write; for a keyed sink, some keys should occur several times,
            and some should be deleted.
        read: returns all rows of the sink.
        as_read: converts a record to a row of `read`, called as ``as_read(key, value)``.
        seeds: number of random orders.
        kills: number of processes that are killed while they write; 0 if the sink is in memory.
        start: start method of these processes. A library with its own threads may not work in a
            forked process: use "spawn" then, which requires that the sink is picklable.

    Raises:
        SinkCheckError: a row is missing or duplicated or inconsistent with the position, or a write
            from a wrong position was not refused.

    Examples:
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
    """Events in a random order, for a separate source."""

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
            # Transaction markers have offsets, too.
            offset = (log[-1].offset + 1 if log else 0) + self.dice.randrange(2)
            log.append(SinkRow(key, value, 1_700_000_000_000 + offset, offset))
        self.written = [(row.key, row.value) for log in self._logs.values() for row in log]

    # -- events --------------------------------------------------------------------------------

    def go(self) -> None:
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
                    self._refused(connection, wrong, "a batch without an expected position")
                found = self._position(connection, partition)
                if found != position:
                    self._fail(f"the position is {found}, and was moved to {position}")
                begin = position
        finally:
            connection.close()

    def _as_zombie(self, batch: SinkBatch, stale: int | None) -> None:
        """Write from an outdated position, as a fenced worker does."""
        zombie = self._open()
        try:
            late = SinkBatch(self.source, batch.partition, stale, batch.next + 2, batch.rows)
            self._refused(zombie, late, "a batch of a zombie")
        finally:
            zombie.close()

    def be_killed(self, start: Literal["fork", "spawn"]) -> None:
        context: Any = multiprocessing.get_context(start)
        for _ in range(3):
            is_open = context.Event()
            process = context.Process(target=self._run_in_process, args=(is_open,))
            process.start()
            while process.is_alive() and not is_open.wait(0.05):
                pass
            time.sleep(self.dice.random() * _KILLED_AFTER_S)
            process.kill()
            process.join()

    def _run_in_process(self, is_open: Any) -> None:
        """Write in a separate process, and set the event after all imports are done."""
        self._open().close()
        is_open.set()
        self.go()

    # -- calls of the sink ---------------------------------------------------------------------

    def _open(self) -> SinkConnection:
        return _retrying(lambda: self.sink.open(self.name))

    def _position(self, connection: SinkConnection, partition: int) -> int | None:
        partitions = list(range(PARTITIONS))
        found: Mapping[int, int] = _retrying(lambda: connection.positions(self.source, partitions))
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
        self._fail(
            f"{what} was written. Compare the position with `expected`, and raise SinkFencedError "
            "if it differs."
        )

    def _fail(self, what: str) -> None:
        raise SinkCheckError(f"seed {self.seed}: {what}")


def _retrying(call: Callable[[], T]) -> T:
    """Retry until the sink is available, because a killed process may have left a lock."""
    deadline = time.monotonic() + _AVAILABLE_WITHIN_S
    while True:
        try:
            return call()
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
    expected = Counter(repr(as_read(key, value)) for key, value in rows)
    found = Counter(map(repr, read()))
    if found != expected:
        missing, unexpected = (expected - found).total(), (found - expected).total()
        raise SinkCheckError(
            f"seed {seed}: {missing} rows are missing, and {unexpected} rows are unexpected. Write "
            "rows and position in a single transaction."
        )
