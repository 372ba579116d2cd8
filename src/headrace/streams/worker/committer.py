"""Commits of a worker: due time, preparation and follow-up; the steps are in `worker.commit`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.streams.kafka.protocols import Log
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import committed_commit_id
from headrace.streams.tasks.task import Task
from headrace.streams.worker.commit import Commit
from headrace.streams.worker.parts import WorkerParts
from headrace.streams.worker.processing import Processing
from headrace.streams.worker.recovery import RECOVERABLE
from headrace.streams.worker.retention import RetentionGuard


class Committer:
    """Commits of a worker, and the work that belongs to each commit.

    Args:
        requested: set by any thread to request a commit.
        purger: called after a commit with its tasks.
        topic_ids: the IDs of the changelogs.
    """

    def __init__(
        self,
        parts: WorkerParts,
        *,
        processing: Processing,
        requested: threading.Event,
        retention: RetentionGuard,
        purger: Callable[[Sequence[Task]], None],
        topic_ids: Mapping[str, str],
    ) -> None:
        self._consumer = parts.dependencies.consumer
        self._tasks = parts.tasks
        self._transactions = parts.transactions
        self._backpressure = parts.backpressure
        self._progress_guard = parts.progress_guard
        self._commit_timing = parts.commit_timing
        self._sink_writes = parts.sink_writes
        self._counters = parts.counters
        self._hot_keys = parts.hot_keys
        self._listener = parts.dependencies.listener
        self._tracer = parts.dependencies.tracer
        self._clock = parts.dependencies.clock
        self._last_id = parts.dependencies.first_commit_id
        self._processing = processing
        self._requested = requested
        self._retention = retention
        self._purger = purger
        self._commit_steps = Commit(
            parts=parts,
            topic_ids=topic_ids,
            protect=retention.protect,
            working=processing.working,
            before_commit=self._before_commit,
            after_commit=self._after_commit,
        )

    def request(self) -> None:
        """Request a commit in this turn or the next; thread-safe."""
        self._requested.set()

    def is_due(self, processed: int) -> bool:
        """Return whether uncommitted work must be committed now; takes a pending request."""
        self._check_unknown_commits()
        requested = self._requested.is_set()
        if requested:
            self._requested.clear()
        requested = (
            requested or self._progress_guard.must_commit or self._transactions.emission.is_spent
        )
        self._write_awaited()
        dirty = [task for task in self._tasks.running if task.needs_commit()]
        if not dirty:
            self._commit_timing.nothing_to_commit()
            if any(task.context.has_collected_rows for task in self._tasks.running):
                self._progress_guard.nothing_to_commit()
            return self._pass_markers(alone=True)
        if not processed and self._backpressure.needs_commit():
            return True
        requested = requested or self._backpressure.is_awaited(dirty)
        return requested or self._commit_timing.is_due(dirty, processed=processed)

    def _pass_markers(self, *, alone: bool, at_once: bool = False) -> bool:
        """Mark inputs that advanced past markers as changed; return whether a commit is needed."""
        if not at_once and not self._commit_timing.is_due_for_markers(alone=alone):
            return False
        running = self._tasks.running
        positions = self._consumer.positions([tp for task in running for tp in task.inputs])
        for task in running:
            task.passed(positions)
        return any(task.needs_commit() for task in running)

    def _write_awaited(self) -> None:
        """Write batched sink rows if another worker waits for the offsets of their tasks."""
        held = [task for task in self._tasks.running if task.context.has_collected_rows]
        if held and self._backpressure.is_awaited(held):
            self._sink_writes.write({task.id for task in held})

    def uncommitted(self) -> dict[str, object]:
        """Return log fields that describe uncommitted work; empty if all work is committed."""
        dirty = [t for t in self._tasks.running if t.needs_commit() or t.context.has_collected_rows]
        if not dirty:
            return {}
        return {
            "tasks": [str(task.id) for task in dirty],
            "partitions": [str(tp) for task in dirty for tp in task.inputs],
            "records": self._counters.open,
            "next": "nothing is lost. The next owner of the tasks processes these records again",
        }

    def commit(self, *, everything: bool = False, ending: Collection[TaskId] = ()) -> None:
        """Commit all running tasks in a transaction, with batched sink rows of `ending` tasks."""
        self._check_unknown_commits()
        self._sink_writes.write(ending)
        # Tasks that end do not wait for the interval, so that no lag remains.
        self._pass_markers(alone=False, at_once=bool(ending))
        running = self._tasks.running
        dirty = [
            t
            for t in running
            if t.needs_commit() or (everything and not t.context.has_collected_rows)
        ]
        if dirty:
            self._commit(dirty, everything=everything)

    def commit_last(self, ending: Collection[TaskId], log: Log) -> bool:
        """Commit before tasks are released; log uncommitted work and return True on failure."""
        try:
            self.commit(ending=ending)
        except RECOVERABLE as error:
            log.warning("last_commit_failed", reason=str(error), **self.uncommitted())
            return True
        return False

    def commit_dead_letters(self) -> None:
        """Commit dead letters and tasks without a sink; tasks with a sink first write rows."""
        self._check_unknown_commits()
        others = [task for task in self._tasks.running if task.context.outbox is None]
        self._commit([task for task in others if task.needs_commit()])

    def _commit(self, dirty: Sequence[Task], *, everything: bool = False) -> None:
        owned = set(self._tasks.owned)
        assert all(task.id in owned for task in dirty), "offsets of a task that is not owned"
        begun_s = self._clock.monotonic_s()
        done = self._progress_guard.retry_budget(dirty)
        self._transactions.begin()
        self._progress_guard.committing(self._transactions.producer, dirty)
        self._last_id += 1
        names = [str(task.id) for task in dirty]
        span = self._tracer.committing(names, self._counters.open)
        records = self._counters.records_committed
        with self._processing.attributing_errors(), span:
            written = self._commit_steps.run(dirty, self._last_id)
        self._hot_keys.written(zip((task.id for task in dirty), written, strict=True))
        self._commit_timing.committed(begun_s, everything=everything)
        self._counters.commit_latency.add(self._clock.monotonic_s() - begun_s)
        records = self._counters.records_committed - records
        self._progress_guard.committed(done, records)
        self._listener.on_commit([task.id for task in dirty], records)
        self._purger(dirty)
        self._sink_writes.dead_letters_committed()
        self._retention.restore_retention(
            [t.sub_topology for t in self._tasks.owned if t.partition == 0]
        )

    def _check_unknown_commits(self) -> None:
        """Check the start offsets of running tasks for commits whose outcome was unknown."""
        if self._counters.is_in_doubt:
            for task in self._tasks.running:
                self._counters.began(task.id, committed_commit_id(task.start))

    def _before_commit(self, tasks: Sequence[Task], commit_id: int) -> None:
        self._counters.ending(
            commit_id, lambda: {task.id: committed_commit_id(task.start) for task in tasks}
        )

    def _after_commit(self, tasks: Sequence[Task]) -> None:
        """Mark the transaction as ended; a later error of local state must not abort it."""
        self._transactions.ended()
        self._counters.committed([task.id for task in tasks], now_ms=self._clock.now_ms())
