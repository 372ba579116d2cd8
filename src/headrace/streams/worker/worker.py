"""The worker: a consumer, a producer, and the loop that drives its tasks.

    poll ─► restore a slice ─► process ─► commit when due ─┐
      ▲────────────────────────────────────────────────────┘

All of this runs in one thread; rebalance callbacks run inside `poll`. State is owned by:
`headrace.streams.worker.membership` (group), `headrace.streams.worker.transactions` (producer), and
`headrace.streams.tasks.tasks` (tasks). The loop uses `processing`, `committer` and `recovery`;
`wiring` creates all of them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from headrace.streams.errors import StopRequestedError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.queries.query_queue import QueryHandler
from headrace.streams.tasks.async_io import CallWatch
from headrace.streams.tasks.failures import describe_failure
from headrace.streams.tasks.restore import SLICE_S, WAIT_S
from headrace.streams.worker.committer import Committer
from headrace.streams.worker.parts import WorkerParts
from headrace.streams.worker.processing import Processing
from headrace.streams.worker.recovery import Recovery, TaskOwnership
from headrace.streams.worker.snapshot_collector import SnapshotCollector
from headrace.topology.context.punctuation import NEVER_MS


class Pausing:
    """Pause of a worker that keeps its tasks."""

    def __init__(self, parts: WorkerParts, committer: Committer) -> None:
        self._consumer = parts.dependencies.consumer
        self._tasks = parts.tasks
        self._fetch = parts.fetch
        self._committer = committer
        self._requested = threading.Event()
        self._notify: Callable[[bool], None] = lambda _: None
        self.is_on = False
        """Whether processing is paused and all work is committed."""

    def follow(self, requested: threading.Event, notify: Callable[[bool], None]) -> None:
        """Pause while an event is set; the worker's thread calls the function at start and end."""
        self._requested, self._notify = requested, notify

    def turn(self) -> bool:
        """Start, continue or end the pause; return whether processing is paused in this turn."""
        if self._requested.is_set():
            if not self.is_on:
                self._committer.commit(ending=[task.id for task in self._tasks.running])
                self.is_on = True
                self._notify(True)
            # Pause in each iteration, because tasks may have started since the last.
            self._consumer.pause([p for task in self._tasks.running for p in task.inputs])
        elif self.is_on:
            self.is_on = False
            self._fetch.resume_all()
            self._notify(False)
        return self.is_on


UNKNOWN_TOPICS_CHECK_S = 1.0
"""Seconds until topics are checked if the group has assigned unknown partitions."""
WAITING_POLL_S = 0.005
"""Maximum wait of a poll while tasks wait to start."""


class Worker:
    """Main loop of a worker, which runs its tasks until it is stopped."""

    def __init__(
        self,
        parts: WorkerParts,
        *,
        processing: Processing,
        committer: Committer,
        recovery: Recovery,
        ownership: TaskOwnership,
        snapshots: SnapshotCollector,
        pausing: Pausing,
        queries: QueryHandler,
    ) -> None:
        self._parts = parts
        self._dependencies = parts.dependencies
        self._config = parts.config
        self._consumer = parts.dependencies.consumer
        self._transactions = parts.transactions
        self._membership = parts.membership
        self.tasks = parts.tasks
        self._restorer = parts.restorer
        self.global_tables = parts.global_tables
        self._fetch = parts.fetch
        self._topic_watch = parts.topic_watch
        self._log = parts.dependencies.log
        self._processing = processing
        self._committer = committer
        self._recovery = recovery
        self._ownership = ownership
        self._snapshots = snapshots
        self.pausing = pausing
        self._queries = queries
        self._stop = threading.Event()
        self._leaves = parts.config.on_stop == "leave"
        self._was_running = False
        self.activity: str | None = None
        """Current step of the loop, for the profiler; None outside of the loop."""
        parts.dependencies.calls.watch(
            CallWatch(self._stop.is_set, self._membership.was_removed).check
        )

    @property
    def processed(self) -> int:
        """Number of records processed since the start, including aborted transactions."""
        return self._parts.counters.processed

    @property
    def latest_snapshot(self) -> WorkerSnapshot | None:
        """The latest snapshot, or None before the first; thread-safe."""
        return self._snapshots.latest

    # -- life cycle --------------------------------------------------------------------------

    def stop(self, *, leave: bool | None = None) -> None:
        """Request the end of the loop; thread-safe; `leave` overrides the setting on.stop."""
        self._leaves = self._leaves if leave is None else leave
        self._stop.set()

    def run(self) -> None:
        """Join the group and process until `stop`; an error rolls back uncommitted work."""
        try:
            self.begin()
            while not self._stop.is_set():
                self.turn()
            self.finish()
        except BaseException as error:
            if isinstance(error, StopRequestedError) and (
                uncommitted := self._committer.uncommitted()
            ):
                self._log.warning("last_commit_failed", reason=str(error), **uncommitted)
            self.close_after_error(error)
            raise

    def begin(self) -> None:
        """Join the group, and end transactions of a predecessor; `turn` starts the tasks."""
        if self.global_tables.has_tables:
            # Other workers keep the tasks during the bootstrap. End a predecessor's transaction
            # first: it may be open on these topics and would block reads.
            self._transactions.init()
            self.global_tables.bootstrap(self._stop.is_set)
            if self._stop.is_set():
                return  # do not join only to leave again
            self._membership.join(self.tasks.subscribed_topics, self)
            return
        # The client joins in the background; no offset is read before the next poll.
        self._membership.join(self.tasks.subscribed_topics, self)
        self._transactions.init()

    def request_commit(self) -> None:
        """Request a commit in this iteration or the next; thread-safe."""
        self._committer.request()

    def turn(self) -> None:
        self.activity = "other"
        with self._recovery.handle_errors():
            self._membership.turn()
            self.activity = "poll"
            self._poll(self._queries.bounded(self._wait_s()))
            self.activity = "restore"
            self._advance()
            self.activity = "global_tables"
            self.global_tables.update()
            self.activity = "process"
            processed = 0 if self.pausing.turn() else self._process()
            self.activity = "commit"
            self._commit_if_due(processed)
            self.activity = "other"
            self.tasks.bound_caches(self.global_tables.caches)
            if self.tasks.has_unknown:
                self._topic_watch.check_within(UNKNOWN_TOPICS_CHECK_S)
            self._topic_watch.turn()
            self._dependencies.brokers.turn()
            self._snapshots.turn()
            self._queries.turn()

    def finish(self) -> None:
        """Close cleanly: commit, release the tasks, and leave the group if configured."""
        self.activity = None
        self._log.info("worker_stopping")
        if failed := self._committer.commit_last(self.tasks.owned, self._log):
            self._recovery.abort_quietly()
        self._snapshots.collect()
        self._consumer.close(leave=self._leaves)
        self.tasks.release(self.tasks.owned)
        self._restorer.close()
        self.global_tables.close()
        self._dependencies.calls.close()
        self._transactions.close()
        self._log.info("worker_stopped", last_commit="failed" if failed else "done")

    def close_after_error(self, error: BaseException | None = None) -> None:
        """Close after an error: roll back uncommitted work, and keep the original error visible."""
        for step in (
            self._recovery.abort_quietly,
            lambda: self._consumer.close(
                leave=self._leaves and not self._dependencies.keeps_partitions(error)
            ),
            lambda: self.tasks.release(self.tasks.owned),
            self._restorer.close,
            self.global_tables.close,
            self._dependencies.calls.close,
            self._transactions.close,
            self._snapshots.collect,
        ):
            try:
                step()
            except Exception as failure:
                reason = describe_failure(failure, full=self._config.log_errors == "full").reason
                self._log.warning("close_failed", reason=reason)

    # -- rebalance callbacks (RebalanceListener) -----------------------------------------------

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        if self._membership.take_new_membership():
            self._dependencies.gate.on_new_membership()
            self._recovery.abort()
        self._membership.record_assignment()
        self._parts.counters.rebalances += 1
        self._topic_watch.check_soon()
        self.tasks.assign(partitions)
        self._was_running = False
        self._log.info("partitions_assigned", partitions=self.tasks.describe_inputs(partitions))
        self._ownership.notify()

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit while this worker still owns the tasks, then release them."""
        leaving = self.tasks.ids_of(partitions)
        self._log.info("partitions_revoked", partitions=self.tasks.describe_inputs(partitions))
        if self._membership.take_new_membership():
            self._dependencies.gate.on_new_membership()
            self._recovery.abort()
        elif leaving:
            with self._recovery.handle_errors():
                # One transaction holds the work of all tasks, so all of it is committed.
                self._committer.commit(ending=leaving)
        self._ownership.release(leaving)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Release tasks that already belong to other workers, without a commit."""
        self._parts.counters.rebalances += 1
        self._recovery.handle_lost(partitions)
        self._ownership.release(self.tasks.ids_of(partitions))

    # -- the steps of a turn -------------------------------------------------------------------

    def _wait_s(self) -> float:
        if self.pausing.is_on and not self._restorer.is_active:
            return self._config.poll_ms / 1000
        running = self.tasks.running
        if self._restorer.is_active or any(map(self._fetch.is_ready, running)):
            return 0.0
        if any(task.has_remaining_results() for task in running):
            return 0.0
        waiting_s = WAITING_POLL_S if self.tasks.are_waiting else math.inf
        idle_s = min(self._config.poll_ms / 1000, self._until_punctuation_s(), waiting_s)
        bounds = (
            self._membership.poll_max_s,
            self._fetch.wait_s(),
            self._parts.commit_timing.wait_s(),
        )
        return min(idle_s, *(bound_s for bound_s in bounds if bound_s is not None))

    def _until_punctuation_s(self) -> float:
        due_ms = min((task.context.wall_due_ms for task in self.tasks.running), default=NEVER_MS)
        return (
            math.inf
            if due_ms == NEVER_MS
            else max(0, due_ms - self._dependencies.clock.now_ms()) / 1000
        )

    def _poll(self, idle_s: float) -> None:
        batches = self._consumer.poll(self._fetch.poll_limit(), idle_s)
        self._parts.progress_guard.polled()
        self._fetch.on_polled(batches)
        for tp, records in batches.items():
            # A callback of this very poll may have taken the partition away.
            if (task := self.tasks.reader_of(tp)) is not None:
                self.tasks.key_sample.add(tp, records)
                task.add(tp, records)

    def _advance(self) -> None:
        if self._dependencies.gate.is_passed():
            with self._parts.progress_guard.preparing():
                self._advance_tasks()

    def _advance_tasks(self) -> None:
        self.tasks.advance()
        if self._restorer.is_active:
            idle = not any(task.queued() for task in self.tasks.running)
            for task in self._restorer.advance(SLICE_S, WAIT_S if idle else 0.0):
                self.tasks.run(task)
        if not self._was_running and self.tasks.owned and self.tasks.all_running:
            self._was_running = True
            self._dependencies.listener.on_running()

    def _process(self) -> int:
        if self._processing.must_commit_first():
            self._committer.commit()
        return self._processing.run()

    def _commit_if_due(self, processed: int) -> None:
        if self._parts.commit_timing.is_due_for_all():
            self._committer.commit(everything=True)
        elif self._committer.is_due(processed):
            # The group may have changed since the last poll. Only polls report this, and a commit
            # under the previous membership would be rejected.
            self._poll(idle_s=0.0)
            self._committer.commit()
