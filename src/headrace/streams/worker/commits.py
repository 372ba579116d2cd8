"""Commits of a worker: due time, preparation and follow-up; the steps are in `worker.commit`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from headrace.streams.kafka.protocols import Clock, Consumer, Log, Probe, Tracer
from headrace.streams.metrics.counters import Counters
from headrace.streams.metrics.hot_keys import HotKeys
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import committed_commit_id
from headrace.streams.tasks.backpressure import RepartitionBackpressure
from headrace.streams.tasks.input_identity import InputIdentity
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.worker.commit import Commit
from headrace.streams.worker.commit_timing import CommitTiming
from headrace.streams.worker.membership import Membership
from headrace.streams.worker.processing import Processing
from headrace.streams.worker.progress_guard import ProgressGuard
from headrace.streams.worker.protocols import WorkerListener
from headrace.streams.worker.reactions import REACTED_TO
from headrace.streams.worker.retention import RetentionGuard
from headrace.streams.worker.sink_writes import SinkWrites
from headrace.streams.worker.transactions import Transactions


class Commits:
    """Commits of a worker, and the work that belongs to each commit.

    Args:
        requested: set by any thread to request a commit.
        purger: called after a commit with its tasks.
        topic_ids: the IDs of the changelogs.
        first_id: the first commit ID; random enough to be unique to this worker.
    """

    def __init__(
        self,
        *,
        consumer: Consumer,
        tasks: Tasks,
        transactions: Transactions,
        membership: Membership,
        processing: Processing,
        backlog: RepartitionBackpressure,
        effort: ProgressGuard,
        timing: CommitTiming,
        requested: threading.Event,
        inputs: InputIdentity,
        retention: RetentionGuard,
        sinks: SinkWrites,
        purger: Callable[[Sequence[Task]], None],
        topic_ids: Mapping[str, str],
        first_id: int,
        listener: WorkerListener,
        tracer: Tracer,
        counters: Counters,
        hot_keys: HotKeys,
        clock: Clock,
        probe: Probe,
    ) -> None:
        self._consumer = consumer
        self._tasks = tasks
        self._transactions = transactions
        self._membership = membership
        self._processing = processing
        self._backlog = backlog
        self._effort = effort
        self._timing = timing
        self._requested = requested
        self._inputs = inputs
        self._retention = retention
        self._sinks = sinks
        self._purger = purger
        self._topic_ids = topic_ids
        self._last_id = first_id
        self._listener = listener
        self._tracer = tracer
        self._counters = counters
        self._hot_keys = hot_keys
        self._clock = clock
        self._probe = probe

    def request(self) -> None:
        """Request a commit in this turn or the next; thread-safe."""
        self._requested.set()

    def is_due(self, processed: int) -> bool:
        """Return whether uncommitted work must be committed now; takes a pending request."""
        self._settle_doubts()
        requested = self._requested.is_set()
        if requested:
            self._requested.clear()
        requested = requested or self._effort.is_enough or self._transactions.emission.is_spent
        self._write_awaited()
        dirty = [task for task in self._tasks.running if task.needs_commit()]
        if not dirty:
            self._timing.nothing_to_commit()
            if any(task.facts.is_held for task in self._tasks.running):
                self._effort.nothing_to_commit()
            return self._pass_markers(alone=True)
        if not processed and self._backlog.wants_commit():
            return True
        requested = requested or self._backlog.is_awaited(dirty)
        return requested or self._timing.is_due(dirty, processed=processed)

    def _pass_markers(self, *, alone: bool, at_once: bool = False) -> bool:
        """Mark inputs that advanced past markers as changed; return whether a commit is needed."""
        if not at_once and not self._timing.is_due_for_markers(alone=alone):
            return False
        running = self._tasks.running
        positions = self._consumer.positions([tp for task in running for tp in task.inputs])
        for task in running:
            task.passed(positions)
        return any(task.needs_commit() for task in running)

    def _write_awaited(self) -> None:
        """Write batched sink rows if another worker waits for the offsets of their tasks."""
        held = [task for task in self._tasks.running if task.facts.is_held]
        if held and self._backlog.is_awaited(held):
            self._sinks.write({task.id for task in held})

    def uncommitted(self) -> dict[str, object]:
        """Return log fields that describe uncommitted work; empty if all work is committed."""
        dirty = [t for t in self._tasks.running if t.needs_commit() or t.facts.is_held]
        if not dirty:
            return {}
        return {
            "tasks": [str(task.id) for task in dirty],
            "partitions": [str(tp) for task in dirty for tp in task.inputs],
            "records": self._counters.open,
            "next": "nothing is lost: whoever has the tasks next processes these records again",
        }

    def commit(self, *, everything: bool = False, ending: Collection[TaskId] = ()) -> None:
        """Commit all running tasks in a transaction, with batched sink rows of `ending` tasks."""
        self._settle_doubts()
        self._sinks.write(ending)
        # Tasks that end do not wait for the interval, so that no lag remains.
        self._pass_markers(alone=False, at_once=bool(ending))
        running = self._tasks.running
        dirty = [t for t in running if t.needs_commit() or (everything and not t.facts.is_held)]
        if dirty:
            self._commit(dirty, everything=everything)

    def commit_last(self, ending: Collection[TaskId], log: Log) -> bool:
        """Commit before tasks are released; log uncommitted work and return True on failure."""
        try:
            self.commit(ending=ending)
        except REACTED_TO as error:
            log.warning("last_commit_failed", reason=str(error), **self.uncommitted())
            return True
        return False

    def commit_letters(self) -> None:
        """Commit dead letters and tasks without a sink; tasks with a sink first write rows."""
        self._settle_doubts()
        others = [task for task in self._tasks.running if task.facts.outbox is None]
        self._commit([task for task in others if task.needs_commit()])

    def _commit(self, dirty: Sequence[Task], *, everything: bool = False) -> None:
        owned = set(self._tasks.owned)
        assert all(task.id in owned for task in dirty), "offsets of a task that is not owned"
        begun_s = self._clock.monotonic_s()
        done = self._effort.to_forgive(dirty)
        self._transactions.begin()
        self._effort.committing(self._transactions.producer, dirty)
        self._last_id += 1
        commit = Commit(
            self._transactions.producer,
            self._membership.metadata,
            self._consumer.positions,
            self._topic_ids,
            self._clock,
            self._probe,
            self._retention.protect,
            self._inputs,
            self._processing.working,
            partial(self._is_ending, dirty),
            partial(self._is_final, dirty),
        )
        names = [str(task.id) for task in dirty]
        span = self._tracer.committing(names, self._counters.open)
        records = self._counters.records_committed
        with self._processing.blaming_inputs(), span:
            written = commit.run(dirty, self._last_id)
        self._hot_keys.written(zip((task.id for task in dirty), written, strict=True))
        self._timing.committed(begun_s, everything=everything)
        self._counters.commit_latency.add(self._clock.monotonic_s() - begun_s)
        records = self._counters.records_committed - records
        self._effort.committed(done, records)
        self._listener.on_commit([task.id for task in dirty], records)
        self._purger(dirty)
        self._sinks.letters_committed()
        self._retention.give_back([t.sub_topology for t in self._tasks.owned if t.partition == 0])

    def _settle_doubts(self) -> None:
        """Check the start offsets of running tasks for commits whose outcome was unknown."""
        if self._counters.is_in_doubt:
            for task in self._tasks.running:
                self._counters.began(task.id, committed_commit_id(task.start))

    def _is_ending(self, tasks: Sequence[Task]) -> None:
        self._counters.ending(
            self._last_id, lambda: {task.id: committed_commit_id(task.start) for task in tasks}
        )

    def _is_final(self, tasks: Sequence[Task]) -> None:
        """Mark the transaction as ended; a later error of local state must not abort it."""
        self._transactions.ended()
        self._counters.committed([task.id for task in tasks], now_ms=self._clock.now_ms())
