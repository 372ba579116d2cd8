"""What the task of an external sink sends: dead letters, and nothing else."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Container, Sequence
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
    """Sends dead letters in a transaction, which such a task does not open by itself.

    Args:
        begin: begins a transaction, unless one is open.
        send: the present producer's.
    """

    def __init__(self, begin: Callable[[], None], send: Callable[..., Any]) -> None:
        self._begin = begin
        self._send = send
        self.are_open = False
        """Whether some are in no commit yet."""

    def send(self, *record: Any) -> None:
        """Send one."""
        self._begin()
        self._send(*record)
        self.are_open = True

    def ended(self) -> None:
        """They are committed, or void."""
        self.are_open = False


# Writing the rows of external sinks: with each commit, before it, or when there are many.
#
# A sink may ask for large batches (`SinkBatching`). Its rows are collected over many commits then,
# which leave the offsets of its tasks where they are.
#
# The order is: the dead letters of what was let go, the sink's own transaction, the group's
# offsets.
# A kill between two of them repeats a dead letter, or leaves the group's offsets behind, and no row
# is missing or doubled. Whatever else goes wrong has one answer: the task begins again at the
# sink's positions.
#
# Hot path: `write_full` is called once a turn.


ROWS_MAX = 10_000
"""So many rows of a task are written before their commit is due, if the sink takes them in time."""
ROWS_FIRST = 1_000
"""How many rows are written first: the sink's speed is not known yet."""
_LONG_S = 1.0
"""A write that fails after so long may have failed for the time that it took."""
_TARGET_MIN_S = 0.1
BYTES_MAX = 8 << 20
"""The same of their memory."""
LINGER_S = 1.0
"""How long rows wait under at-least-once, where commits are far apart."""


HELD_BYTES_MAX = 256 << 20
"""What the tasks of a worker may collect together, unless one of them may collect more."""


class SinkWrites:
    """Writes of rows to external sinks, with or before the commit.

    Args:
        running: the tasks that process records.
        begin_again: ends a task, which begins again at the sink's position.
        commit_letters: commits what was sent instead of rows.
        target_s: how long the rows of a sink may take at a time.
        linger_s: how long rows wait where commits are far apart; None where a commit is due anyway.
    """

    def __init__(
        self,
        connections: SinkConnections,
        letters: DeadLetterProducer,
        *,
        running: Callable[[], Sequence[Task]],
        begin_again: Callable[[Task], None],
        commit_letters: Callable[[], None],
        linger_s: float | None,
        target_s: float,
        clock: Clock,
        probe: Probe,
        log: Log,
    ) -> None:
        self._connections = connections
        self._letters = letters
        self._running = running
        self._begin_again = begin_again
        self._commit_letters = commit_letters
        self._linger_s = linger_s
        self._target_s = target_s
        self._batches: dict[str, AdaptiveBatchSize] = {}
        """How many rows are written at a time, by the step that writes them."""
        self._clock = clock
        self._probe = probe
        self._log = log
        self._written_s = clock.monotonic_s()

    def room(self, task: Task) -> int:
        """How many records a task may process before its rows are to be written; at least one."""
        outbox = task.facts.outbox
        if outbox.batching is not None:
            return sys.maxsize
        kept: int = len(outbox.kept)
        return max(1, self._rows_max(outbox) - kept)

    def _rows_max(self, outbox: Outbox) -> int:
        """How many rows a task of a sink may write, so that all of them end within the target."""
        found = (task.facts.outbox for task in self._running())
        tasks = len([other for other in found if other is not None and other.node == outbox.node])
        return max(1, self._batch_of(outbox).size // max(1, tasks))

    def _batch_of(self, outbox: Outbox) -> AdaptiveBatchSize:
        batch = self._batches.get(outbox.node)
        if batch is None:
            # Large batches may take long, unless the sink ends them.
            is_large = outbox.batching is not None
            batch = self._batches[outbox.node] = AdaptiveBatchSize(
                target_s=math.inf if is_large else self._target_s,
                size=sys.maxsize if is_large else ROWS_FIRST,
                max_size=sys.maxsize if is_large else ROWS_MAX,
                log=self._log,
                fields={"batch": "sink", "sink": outbox.node, "unit": "rows"},
            )
        return batch

    def write_full(self) -> None:
        """Write those rows that are many, or have waited for long."""
        tasks = [task for task in self._running() if task.facts.outbox is not None]
        if not tasks:
            return
        waited_s = self._clock.monotonic_s() - self._written_s
        is_late = self._linger_s is not None and waited_s >= self._linger_s
        for task in tasks:
            outbox = task.facts.outbox
            if outbox.batching is not None:
                is_full = self._is_due(outbox)
            else:
                many = len(outbox.kept) >= self._rows_max(outbox)
                is_full = many or outbox.bytes >= BYTES_MAX or is_late
            if is_full:
                self._write(task, outbox)
        if is_late:
            self._written_s = self._clock.monotonic_s()
        self._keep_within_bounds(tasks)

    def _is_due(self, outbox: Outbox) -> bool:
        """Whether the rows that are collected are enough, or have been so for long enough."""
        if not outbox.is_held:
            return False
        batching, now_s = outbox.batching, self._clock.monotonic_s()
        assert batching is not None
        if outbox.since_s is None:
            outbox.since_s = now_s
        if len(outbox.kept) >= batching.max_rows or outbox.bytes >= batching.max_bytes:
            return True
        return now_s - outbox.since_s >= batching.every_s

    def _keep_within_bounds(self, tasks: Sequence[Task]) -> None:
        """Write those rows that take most memory, where all of them take too much."""
        held = [task for task in tasks if task.facts.outbox.batching is not None]
        most = max((task.facts.outbox.batching.max_bytes for task in held), default=0)
        while sum(task.facts.outbox.bytes for task in held) > max(HELD_BYTES_MAX, most):
            fullest = max(held, key=lambda task: task.facts.outbox.bytes)
            held.remove(fullest)
            self._write(fullest, fullest.facts.outbox)

    def letters_committed(self) -> None:
        """What was sent instead of rows is committed."""
        self._letters.ended()

    def write(self, ending: Container[TaskId] = ()) -> None:
        """Write all rows but those that are collected.

        Those tasks that still run behind it have nothing that is not written, or are held.

        Args:
            ending: tasks whose rows are written in any case.
        """
        for task in self._running():
            if task.facts.outbox is not None and (not task.facts.is_held or task.id in ending):
                self._write(task, task.facts.outbox)
        self._written_s = self._clock.monotonic_s()

    def _write(self, task: Task, outbox: Outbox) -> None:
        ((_, next_offset),) = task.next_offset.items()
        if not task.moved or next_offset == outbox.position:
            return
        rows, kept = outbox.take()
        try:
            self._send_letters()
            self._write_all(task, outbox, rows, kept, next_offset)
        except SinkFencedError as error:
            self._log.warning(
                "sink_fenced",
                task=str(task.id),
                sink=outbox.node,
                reason=str(error),
                next="nothing is lost or doubled: the task begins again where the sink is",
            )
            self._begin_again(task)
        except SinkUnavailableError as error:
            if not error.timed_out or self._batch_of(outbox).size == 1:
                self._connections.unavailable(outbox.node, error)
            self._begin_again(task)

    def _write_all(
        self,
        task: Task,
        outbox: Outbox,
        rows: Sequence[SinkRow],
        kept: Sequence[Kept],
        next_offset: int,
    ) -> None:
        """Write rows, so many at a time as the sink takes in time."""
        batch = self._batch_of(outbox)
        while True:
            cut = _end_of(rows, self._rows_max(outbox))
            middle = rows[cut].offset if cut < len(rows) else next_offset
            begun_s = self._clock.monotonic_s()
            try:
                self._write_rows(task, outbox, rows[:cut], kept[:cut], middle)
            except SinkUnavailableError as error:
                took_s = self._clock.monotonic_s() - begun_s
                if error.timed_out or took_s >= _LONG_S:
                    batch.target_s = min(batch.target_s, max(took_s / 2, _TARGET_MIN_S))
                    batch.timed_out(cut, took_s)
                raise
            batch.succeeded(cut, self._clock.monotonic_s() - begun_s)
            rows, kept = rows[cut:], kept[cut:]
            if not rows:
                return

    def _write_rows(
        self,
        task: Task,
        outbox: Outbox,
        rows: Sequence[SinkRow],
        kept: Sequence[Kept],
        next_offset: int,
    ) -> None:
        """Write rows; one that is refused is found by halves, and the others are written.

        Those of one record go together, or not at all: its offset is in one batch.
        """
        try:
            self._write_batch(task, outbox, rows, next_offset)
        except SinkRefusedError as error:
            if error.others is not None:
                left = self._let_go(task, outbox, rows, kept, [error, *error.others])
                if len(left) < len(rows):
                    fine = [rows[at] for at in left], [kept[at] for at in left]
                    self._write_rows(task, outbox, *fine, next_offset)
                    return
            if not rows:
                raise  # a position that is refused is no row's fault
            if rows[0].offset != rows[-1].offset:
                cut = _cut(rows, error)
                middle = rows[cut].offset
                self._write_rows(task, outbox, rows[:cut], kept[:cut], middle)
                self._write_rows(task, outbox, rows[cut:], kept[cut:], next_offset)
                return
            self._connections.stumbled_over(outbox.node, error)
            task.facts.refused(outbox.node, error.with_traceback(None), kept[0][3], rows[0])
            self._say_siblings(task, outbox, rows)
            self._send_letters()
            self._write_batch(task, outbox, (), next_offset)

    def _let_go(
        self,
        task: Task,
        outbox: Outbox,
        rows: Sequence[SinkRow],
        kept: Sequence[Kept],
        errors: Sequence[SinkRefusedError],
    ) -> Sequence[int]:
        """Ask about all records whose rows are refused; returns where those are that are not."""
        refused = {error.offset: error for error in reversed(errors)}
        asked: set[int] = set()
        for row, (_, _, _, message) in zip(rows, kept, strict=True):
            if row.offset in refused and row.offset not in asked:
                asked.add(row.offset)
                error = refused[row.offset].with_traceback(None)
                task.facts.refused(outbox.node, error, message, row)
                own = [one for one in rows if one.offset == row.offset]
                self._say_siblings(task, outbox, own)
        self._send_letters()
        return [at for at, row in enumerate(rows) if row.offset not in refused]

    def _say_siblings(self, task: Task, outbox: Outbox, rows: Sequence[SinkRow]) -> None:
        """Say that the other rows of a record go with the one that is refused.

        Which of them are fine only a write shows, and that is the one that moves the position.
        """
        if len(rows) > 1:
            ((place, _),) = task.next_offset.items()
            self._log.warning(
                "record_left_out_whole",
                task=str(task.id),
                sink=outbox.node,
                record=f"{place} offset {rows[0].offset}",
                rows=len(rows),
                next="the table refuses one of its rows, and those of a record are written "
                "together or not at all; leave direct=True out to have the others written",
            )

    def _write_batch(
        self, task: Task, outbox: Outbox, rows: Sequence[SinkRow], next_offset: int
    ) -> None:
        if outbox.batching is not None and not rows:
            return  # the group's offset is enough to be past records that are no rows
        sink = task.spec.program.sub_topology.outside
        assert sink is not None
        assert sink.writes_outside is not None
        batch = SinkBatch(outbox.source, task.id.partition, outbox.position, next_offset, rows)
        self._connections.write(outbox.node, sink.writes_outside, batch)
        outbox.wrote(next_offset)
        self._probe("sink_written")

    def _send_letters(self) -> None:
        """Make dead letters last before the position passes the records that they are of."""
        if self._letters.are_open:
            self._commit_letters()


def _end_of(rows: Sequence[SinkRow], count: int) -> int:
    """Where so many rows end; those of one record stay together."""
    end = min(count, len(rows))
    while end < len(rows) and rows[end].offset == rows[end - 1].offset:
        end += 1
    return end


def _cut(rows: Sequence[SinkRow], error: SinkRefusedError) -> int:
    """Where to cut rows of several records: before the refused one, else about in the middle."""
    found = (i for i, row in enumerate(rows) if row.offset == error.offset)
    cut = next(found, len(rows) // 2)
    while cut and rows[cut - 1].offset == rows[cut].offset:
        cut -= 1
    if cut:
        return cut
    # It is of the first record, which then is alone.
    return next(i for i, row in enumerate(rows) if row.offset != rows[0].offset)
