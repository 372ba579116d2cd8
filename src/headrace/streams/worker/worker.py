"""The worker: one consumer, one producer, and the loop that moves its tasks.

    poll ─► restore a slice ─► process ─► commit when due ─┐
      ▲────────────────────────────────────────────────────┘

Everything happens in one thread; rebalance callbacks run inside `poll`. Who knows what: the group's
word is `headrace.streams.worker.membership`'s, the producer
`headrace.streams.worker.transactions`', the tasks `headrace.streams.tasks.tasks`'. Beside the loop
stand `processing`, `commits` and `reactions`; `wiring` makes them all.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import StopRequestedError
from headrace.streams.kafka.protocols import Clock, Consumer, Contact, Log, TopicPartition
from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.queries.query_queue import QueryHandler
from headrace.streams.tasks.async_io import CallWatch
from headrace.streams.tasks.failures import describe_failure
from headrace.streams.tasks.fetch import FetchController
from headrace.streams.tasks.gate_watch import Gate
from headrace.streams.tasks.global_tables import GlobalTables
from headrace.streams.tasks.restore import SLICE_S, WAIT_S, Restorer
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.worker.commit_timing import CommitTiming
from headrace.streams.worker.commits import Commits
from headrace.streams.worker.membership import Membership
from headrace.streams.worker.processing import Processing
from headrace.streams.worker.progress_guard import ProgressGuard
from headrace.streams.worker.protocols import WorkerListener
from headrace.streams.worker.reactions import Ownership, Reactions
from headrace.streams.worker.snapshot_collector import SnapshotCollector
from headrace.streams.worker.topic_watch import TopicWatch
from headrace.streams.worker.transactions import Transactions
from headrace.topology.context.calls import Caller
from headrace.topology.context.punctuation import NEVER_MS

# A worker that is told to process nothing for a while, and keeps its tasks.


class Pausing:
    """Pause of a worker that keeps its tasks."""

    def __init__(
        self, consumer: Consumer, tasks: Tasks, intake: FetchController, commits: Commits
    ) -> None:
        self._consumer = consumer
        self._tasks = tasks
        self._intake = intake
        self._commits = commits
        self._asked = threading.Event()
        self._heard: Callable[[bool], None] = lambda _: None
        self.is_on = False
        """Whether nothing is processed now, and all that was is committed."""

    def follow(self, asked: threading.Event, heard: Callable[[bool], None]) -> None:
        """Pause while `asked` is set; `heard` is told in the worker's thread when that is so."""
        self._asked, self._heard = asked, heard

    def turn(self) -> bool:
        """Do as one is told; returns whether nothing is to be processed in this turn."""
        if self._asked.is_set():
            if not self.is_on:
                self._commits.commit(ending=[task.id for task in self._tasks.running])
                self.is_on = True
                self._heard(True)
            # In each turn: tasks that have begun since then are read from as all are.
            self._consumer.pause([p for task in self._tasks.running for p in task.inputs])
        elif self.is_on:
            self.is_on = False
            self._intake.resume_all()
            self._heard(False)
        return self.is_on


UNKNOWN_LOOK_S = 1.0
"""How often to look for partitions that the group has given out and that are not known yet."""
WAITING_LOOK_S = 0.005
"""How often to look at tasks that wait to begin."""


class Worker:
    """Runs tasks until it is told to stop."""

    def __init__(
        self,
        *,
        config: StreamsConfig,
        consumer: Consumer,
        transactions: Transactions,
        membership: Membership,
        tasks: Tasks,
        restorer: Restorer,
        global_tables: GlobalTables,
        intake: FetchController,
        effort: ProgressGuard,
        processing: Processing,
        commits: Commits,
        timing: CommitTiming,
        reactions: Reactions,
        ownership: Ownership,
        topic_watch: TopicWatch,
        contact: Contact,
        gate: Gate,
        gathering: SnapshotCollector,
        pausing: Pausing,
        answering: QueryHandler,
        listener: WorkerListener,
        calls: Caller,
        clock: Clock,
        log: Log,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._transactions = transactions
        self._membership = membership
        self.tasks = tasks
        self._restorer = restorer
        self.global_tables = global_tables
        self._intake = intake
        self._effort = effort
        self._processing = processing
        self._commits = commits
        self._timing = timing
        self._reactions = reactions
        self._ownership = ownership
        self._topic_watch = topic_watch
        self._contact = contact
        self._gate = gate
        self._gathering = gathering
        self.pausing = pausing
        self._answering = answering
        self._listener = listener
        self._calls = calls
        self._clock = clock
        self._log = log
        self._stop = threading.Event()
        self._leaves = config.on_stop == "leave"
        self.holds: Callable[[BaseException | None], bool] = lambda _: False  # its partitions
        self._was_running = False
        calls.watch(CallWatch(self._stop.is_set, membership.is_given_up).look)

    @property
    def processed(self) -> int:
        """Records processed since the start, those of aborted transactions included."""
        return self._gathering.counters.processed

    @property
    def facts(self) -> WorkerSnapshot | None:
        """How it was doing a moment ago; may be asked for from anywhere. None before it began."""
        return self._gathering.latest

    # -- the life of a worker ----------------------------------------------------------------

    def stop(self, *, leave: bool | None = None) -> None:
        """Ask the loop to end soon, from anywhere; `leave` goes over the setting on.stop."""
        self._leaves = self._leaves if leave is None else leave
        self._stop.set()

    def run(self) -> None:
        """Join the group and process until `stop`.

        Raises:
            StreamsError: what stopped the worker; nothing that it was doing is committed.
        """
        try:
            self.begin()
            while not self._stop.is_set():
                self.turn()
            self.finish()
        except BaseException as error:
            if isinstance(error, StopRequestedError) and (left := self._commits.uncommitted()):
                self._log.warning("last_commit_failed", reason=str(error), **left)
            self.give_up(error)
            raise

    def begin(self) -> None:
        """Join the group, and decide what a predecessor left open; tasks come with the turns."""
        if self.global_tables.are_there:
            # While they are read, others go on with the tasks. What a predecessor left open may be
            # on their topics too, and nothing is read behind it.
            self._transactions.init()
            self.global_tables.bootstrap(self._stop.is_set)
            if self._stop.is_set():
                return  # nobody needs to hear of a member that comes to leave
            self._membership.join(self.tasks.lead_topics, self)
            return
        # Joining goes on in the background meanwhile; no offset is read before the next poll.
        self._membership.join(self.tasks.lead_topics, self)
        self._transactions.init()

    def request_commit(self) -> None:
        """Commit in this turn or the next one; may be called from anywhere."""
        self._commits.request()

    def turn(self) -> None:
        """Go once around the loop."""
        with self._reactions.reacting():
            self._membership.turn()
            self._poll(self._answering.bounded(self._wait_s()))
            self._advance()
            self.global_tables.update()
            processed = 0 if self.pausing.turn() else self._process()
            self._commit_if_due(processed)
            self.tasks.bound_caches(self.global_tables.caches)
            if self.tasks.has_unknown:
                self._topic_watch.look_within(UNKNOWN_LOOK_S)
            self._topic_watch.turn()
            self._contact.turn()
            self._gathering.turn()
            self._answering.turn()

    def finish(self) -> None:
        """Close cleanly: commit what was done, keep what is committed, leave as told."""
        self._log.info("worker_stopping")
        if failed := self._commits.commit_last(self.tasks.owned, self._log):
            self._reactions.abort_quietly()
        self._gathering.gather()
        self._consumer.close(leave=self._leaves)
        self.tasks.release(self.tasks.owned)
        self._restorer.close()
        self.global_tables.close()
        self._calls.close()
        self._transactions.close()
        self._log.info("worker_stopped", last_commit="failed" if failed else "done")

    def give_up(self, error: BaseException | None = None) -> None:
        """Close after an error: nothing uncommitted may survive, and nothing may hide the error."""
        for step in (
            self._reactions.abort_quietly,
            lambda: self._consumer.close(leave=self._leaves and not self.holds(error)),
            lambda: self.tasks.release(self.tasks.owned),
            self._restorer.close,
            self.global_tables.close,
            self._calls.close,
            self._transactions.close,
            self._gathering.gather,
        ):
            try:
                step()
            except Exception as failure:
                reason = describe_failure(failure, full=self._config.log_errors == "full").reason
                self._log.warning("close_failed", reason=reason)

    # -- the group's word (RebalanceListener) --------------------------------------------------

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Own more tasks."""
        if self._membership.hear():
            self._gate.on_new_membership()
            self._reactions.abort()
        self._membership.assigned()
        self._gathering.counters.rebalances += 1
        self._topic_watch.look_soon()
        self.tasks.assign(partitions)
        self._was_running = False
        self._log.info("partitions_assigned", partitions=self.tasks.told(partitions))
        self._ownership.tell()

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit while the tasks are still this worker's, then let go of them."""
        leaving = self.tasks.owned_of(partitions)
        self._log.info("partitions_revoked", partitions=self.tasks.told(partitions))
        if self._membership.hear():
            self._gate.on_new_membership()
            self._reactions.abort()
        elif leaving:
            with self._reactions.reacting():
                # One transaction holds the work of all tasks, so all of it is committed.
                self._commits.commit(ending=leaving)
        self._ownership.let_go(leaving)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop tasks that are somebody else's already, with all that is uncommitted."""
        self._gathering.counters.rebalances += 1
        self._reactions.lose(partitions)
        self._ownership.let_go(self.tasks.owned_of(partitions))

    # -- the steps of a turn -------------------------------------------------------------------

    def _wait_s(self) -> float:
        """How long a poll may wait for records."""
        if self.pausing.is_on and not self._restorer.is_active:
            return self._config.poll_ms / 1000
        if self._restorer.is_active or any(map(self._intake.is_ready, self.tasks.running)):
            return 0.0
        waiting_s = WAITING_LOOK_S if self.tasks.are_waiting else math.inf
        idle_s = min(self._config.poll_ms / 1000, self._until_punctuation_s(), waiting_s)
        bounds = (self._membership.poll_max_s, self._intake.wait_s(), self._timing.wait_s())
        return min(idle_s, *(bound_s for bound_s in bounds if bound_s is not None))

    def _until_punctuation_s(self) -> float:
        """How long it is until a punctuator is due by the wall clock."""
        due_ms = min((task.facts.wall_due_ms for task in self.tasks.running), default=NEVER_MS)
        return math.inf if due_ms == NEVER_MS else max(0, due_ms - self._clock.now_ms()) / 1000

    def _poll(self, idle_s: float) -> None:
        batches = self._consumer.poll(self._intake.room(), idle_s)
        self._effort.polled()
        self._intake.came(batches)
        for place, records in batches.items():
            # A callback of this very poll may have taken the partition away.
            if (task := self.tasks.reader_of(place)) is not None:
                self.tasks.key_sample.look(place, records)
                task.add(place, records)

    def _advance(self) -> None:
        if self._gate.is_passed():
            with self._effort.preparing():
                self._advance_tasks()

    def _advance_tasks(self) -> None:
        self.tasks.advance()
        if self._restorer.is_active:
            idle = not any(task.queued() for task in self.tasks.running)
            for task in self._restorer.advance(SLICE_S, WAIT_S if idle else 0.0):
                self.tasks.run(task)
        if not self._was_running and self.tasks.owned and self.tasks.all_running:
            self._was_running = True
            self._listener.on_running()

    def _process(self) -> int:
        if self._processing.must_commit_first():
            self._commits.commit()
        return self._processing.run()

    def _commit_if_due(self, processed: int) -> None:
        if self._commits.is_due_for_all():
            self._commits.commit(everything=True)
        elif self._commits.is_due(processed):
            # The group may have changed since the last poll; its word comes in polls alone, and a
            # commit under the membership of before would be refused.
            self._poll(idle_s=0.0)
            self._commits.commit()
