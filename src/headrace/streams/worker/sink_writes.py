"""Writes of rows to external sinks: with each commit, before it, or at a size limit.

A sink may request large batches (`SinkBatching`). Its rows are then batched over many commits,
which do not advance the offsets of its tasks.

The order is: dead letters of skipped records, the sink's own transaction, the group's offsets. If
the process is killed between two of these, a dead letter is repeated, or the group's offsets are
outdated, but no row is lost or duplicated. After any other failure, the task restarts at the
sink's positions.

Hot path: `write_full` is called once per iteration.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.streams.kafka.adaptive_batch_size import AdaptiveBatchSize
from headrace.streams.kafka.protocols import Clock, Log, Probe
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.sink_connections import SinkConnections
from headrace.streams.tasks.task import Task
from headrace.topology.external_sink import (
    SinkBatch,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
)
from headrace.topology.operators.outbox import Kept, Outbox


class DeadLetterProducer:
    """Producer of dead letters for tasks that open no transaction themselves.

    Args:
        begin: begins a transaction, unless one is open.
        send: the send function of the current producer.
    """

    def __init__(self, begin: Callable[[], None], send: Callable[..., Any]) -> None:
        self._begin = begin
        self._send = send
        self.are_open = False
        """Whether any dead letter is not committed yet."""

    def send(self, *record: Any) -> None:
        self._begin()
        self._send(*record)
        self.are_open = True


ROWS_MAX = 10_000
"""Maximum number of rows of a task before a write, if the sink is fast enough."""
ROWS_FIRST = 1_000
"""Number of rows of the first write, while the sink's speed is unknown."""
_LONG_S = 1.0
"""Duration in seconds after which a failed write counts as a timeout."""
_TARGET_MIN_S = 0.1
BYTES_MAX = 8 << 20
"""Maximum memory of a task's rows before a write."""
LINGER_S = 1.0
"""Maximum delay of rows under at-least-once, where commits are rare."""


BATCHED_BYTES_MAX = 256 << 20
"""Maximum memory of the batched rows of all tasks, unless a single sink allows more."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a task for its sink.

    Args:
        kept: the input record of each row.
        next_offset: the position of the sink after them.
    """

    task: Task
    outbox: Outbox
    rows: Sequence[SinkRow]
    kept: Sequence[Kept]
    next_offset: int

    def split(self, cut: int) -> tuple[_Rows, _Rows]:
        middle = self.rows[cut].offset if cut < len(self.rows) else self.next_offset
        return (
            replace(self, rows=self.rows[:cut], kept=self.kept[:cut], next_offset=middle),
            replace(self, rows=self.rows[cut:], kept=self.kept[cut:]),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class SinkWrites:
    """Writes of rows to external sinks, with or before the commit.

    Args:
        running: returns the tasks that process records.
        restart_task: re-creates a task at the sink's position.
        commit_dead_letters: commits dead letters.
        target_s: target duration of a write of all rows of a sink.
        linger_s: maximum delay of rows if commits are rare; None to wait for the commit.
    """

    connections: SinkConnections
    dead_letters: DeadLetterProducer
    running: Callable[[], Sequence[Task]]
    restart_task: Callable[[Task], None]
    commit_dead_letters: Callable[[], None]
    linger_s: float | None
    target_s: float
    clock: Clock
    probe: Probe
    log: Log
    _batches: dict[str, AdaptiveBatchSize] = field(default_factory=dict, init=False)
    """Batch size of each sink, by operator."""
    _written_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._written_s = self.clock.monotonic_s()

    def max_records(self, task: Task) -> int:
        """Return the number of records that a task may process before a write; at least 1."""
        outbox = task.context.outbox
        if outbox.batching is not None:
            return sys.maxsize
        kept: int = len(outbox.kept)
        return max(1, self._rows_max(outbox) - kept)

    def _rows_max(self, outbox: Outbox) -> int:
        """Return the batch size per task, so that all tasks of a sink finish within the target."""
        outboxes = (task.context.outbox for task in self.running())
        tasks = len(
            [other for other in outboxes if other is not None and other.node == outbox.node]
        )
        return max(1, self._batch_of(outbox).size // max(1, tasks))

    def _batch_of(self, outbox: Outbox) -> AdaptiveBatchSize:
        batch = self._batches.get(outbox.node)
        if batch is None:
            # Large batches may take long, unless the sink limits them.
            is_large = outbox.batching is not None
            batch = self._batches[outbox.node] = AdaptiveBatchSize(
                target_s=math.inf if is_large else self.target_s,
                size=sys.maxsize if is_large else ROWS_FIRST,
                max_size=sys.maxsize if is_large else ROWS_MAX,
                log=self.log,
                fields={"batch": "sink", "sink": outbox.node, "unit": "rows"},
            )
        return batch

    def write_full(self) -> None:
        """Write rows of tasks that have reached their size limit or their maximum delay."""
        tasks = [task for task in self.running() if task.context.outbox is not None]
        if not tasks:
            return
        waited_s = self.clock.monotonic_s() - self._written_s
        is_late = self.linger_s is not None and waited_s >= self.linger_s
        for task in tasks:
            outbox = task.context.outbox
            if outbox.batching is not None:
                is_full = self._is_due(outbox)
            else:
                many = len(outbox.kept) >= self._rows_max(outbox)
                is_full = many or outbox.bytes >= BYTES_MAX or is_late
            if is_full:
                self._write(task, outbox)
        if is_late:
            self._written_s = self.clock.monotonic_s()
        self._limit_batched_bytes(tasks)

    def _is_due(self, outbox: Outbox) -> bool:
        if not outbox.has_collected_rows:
            return False
        batching, now_s = outbox.batching, self.clock.monotonic_s()
        assert batching is not None
        if outbox.since_s is None:
            outbox.since_s = now_s
        if len(outbox.kept) >= batching.max_rows or outbox.bytes >= batching.max_bytes:
            return True
        return now_s - outbox.since_s >= batching.every_s

    def _limit_batched_bytes(self, tasks: Sequence[Task]) -> None:
        held = [task for task in tasks if task.context.outbox.batching is not None]
        most = max((task.context.outbox.batching.max_bytes for task in held), default=0)
        while sum(task.context.outbox.bytes for task in held) > max(BATCHED_BYTES_MAX, most):
            fullest = max(held, key=lambda task: task.context.outbox.bytes)
            held.remove(fullest)
            self._write(fullest, fullest.context.outbox)

    def dead_letters_committed(self) -> None:
        self.dead_letters.are_open = False

    def write(self, ending: Container[TaskId] = ()) -> None:
        """Write all rows except batched rows, and batched rows of `ending` tasks.

        After this, a running task has no unwritten rows, or batched rows that delay its commit.
        """
        for task in self.running():
            if task.context.outbox is not None and (
                not task.context.has_collected_rows or task.id in ending
            ):
                self._write(task, task.context.outbox)
        self._written_s = self.clock.monotonic_s()

    def _write(self, task: Task, outbox: Outbox) -> None:
        ((_, next_offset),) = task.next_offset.items()
        if not task.moved or next_offset == outbox.position:
            return
        try:
            self._commit_dead_letters()
            self._write_all(_Rows(task, outbox, *outbox.take(), next_offset))
        except SinkFencedError as error:
            self.log.warning(
                "sink_fenced",
                task=str(task.id),
                sink=outbox.node,
                reason=str(error),
                next="no row is lost or duplicated. The task restarts at the position of the sink",
            )
            self.restart_task(task)
        except SinkUnavailableError as error:
            if not error.timed_out or self._batch_of(outbox).size == 1:
                self.connections.unavailable(outbox.node, error)
            self.restart_task(task)

    def _write_all(self, left: _Rows) -> None:
        batch = self._batch_of(left.outbox)
        while True:
            count = _end_of_record(left.rows, self._rows_max(left.outbox))
            now, left = left.split(count)
            begun_s = self.clock.monotonic_s()
            try:
                self._write_rows(now)
            except SinkUnavailableError as error:
                took_s = self.clock.monotonic_s() - begun_s
                if error.timed_out or took_s >= _LONG_S:
                    batch.target_s = min(batch.target_s, max(took_s / 2, _TARGET_MIN_S))
                    batch.timed_out(count, took_s)
                raise
            batch.succeeded(count, self.clock.monotonic_s() - begun_s)
            if not left.rows:
                return

    def _write_rows(self, now: _Rows) -> None:
        """Write rows; find refused rows by bisection between records, and write the rest."""
        rows = now.rows
        try:
            self._write_batch(now)
        except SinkRefusedError as error:
            if error.others is not None:
                accepted = self._skip_refused(now, [error, *error.others])
                if len(accepted.rows) < len(rows):
                    self._write_rows(accepted)
                    return
            if not rows:
                raise  # the sink refuses the position itself, not a row
            if rows[0].offset != rows[-1].offset:
                for half in now.split(_bisection_index(rows, error)):
                    self._write_rows(half)
                return
            self.connections.row_refused(now.outbox.node, error)
            self._skip(now, error, rows)
            self._commit_dead_letters()
            self._write_batch(replace(now, rows=(), kept=()))

    def _skip_refused(self, now: _Rows, errors: Sequence[SinkRefusedError]) -> _Rows:
        """Call handlers for all records with refused rows; return the rows of other records."""
        refused = {error.offset: error for error in reversed(errors)}
        for offset in dict.fromkeys(row.offset for row in now.rows):
            if offset in refused:
                self._skip(now, refused[offset], [r for r in now.rows if r.offset == offset])
        self._commit_dead_letters()
        left = [i for i, row in enumerate(now.rows) if row.offset not in refused]
        return replace(now, rows=[now.rows[i] for i in left], kept=[now.kept[i] for i in left])

    def _skip(self, now: _Rows, error: SinkRefusedError, rows: Sequence[SinkRow]) -> None:
        """Call the handler for the record of refused rows, and log its other rows."""
        first = next(i for i, row in enumerate(now.rows) if row.offset == rows[0].offset)
        message = now.kept[first][3]
        now.task.context.on_row_rejected(
            now.outbox.node, error.with_traceback(None), message, rows[0]
        )
        if len(rows) > 1:  # writes that test the other rows would move the position
            ((tp, _),) = now.task.next_offset.items()
            self.log.warning(
                "sink_record_rejected",
                task=str(now.task.id),
                sink=now.outbox.node,
                record=f"{tp} offset {rows[0].offset}",
                rows=len(rows),
                next="the table refuses a row of the record, and the rows of a record are written "
                "together or not at all. Remove direct=True to write the other rows",
            )

    def _write_batch(self, now: _Rows) -> None:
        outbox, task = now.outbox, now.task
        if outbox.batching is not None and not now.rows:
            return  # the group's offset is sufficient to pass records without rows
        sink = task.spec.program.sub_topology.sink_node
        assert sink is not None
        assert sink.external_sink is not None
        batch = SinkBatch(
            outbox.source, task.id.partition, outbox.position, now.next_offset, now.rows
        )
        self.connections.write(outbox.node, sink.external_sink, batch)
        outbox.wrote(now.next_offset)
        self.probe("sink_written")

    def _commit_dead_letters(self) -> None:
        """Commit dead letters before the sink's position passes their records."""
        if self.dead_letters.are_open:
            self.commit_dead_letters()


def _end_of_record(rows: Sequence[SinkRow], count: int) -> int:
    """Return the index after a number of rows, without splitting the rows of a record."""
    end = min(count, len(rows))
    while end < len(rows) and rows[end].offset == rows[end - 1].offset:
        end += 1
    return end


def _bisection_index(rows: Sequence[SinkRow], error: SinkRefusedError) -> int:
    """Return the index for bisection: before the refused record, else near the middle."""
    refused = (i for i, row in enumerate(rows) if row.offset == error.offset)
    cut = next(refused, len(rows) // 2)
    while cut and rows[cut - 1].offset == rows[cut].offset:
        cut -= 1
    if cut:
        return cut
    # The refused row belongs to the first record, so separate that record.
    return next(i for i, row in enumerate(rows) if row.offset != rows[0].offset)
