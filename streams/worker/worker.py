"""The worker: one consumer, one producer, and the loop that moves its tasks.

    poll ─► restore a slice ─► process ─► commit when due ─┐
      ▲────────────────────────────────────────────────────┘

Everything happens in one thread; rebalance callbacks run inside `poll`. Who knows what: the group's
word is `headrace.streams.commit.membership`'s, the producer
`headrace.streams.commit.transactions`', the tasks `headrace.streams.tasks.tasks`'.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from headrace.streams.commit.commit import Commit
from headrace.streams.commit.commit_timing import CommitTiming
from headrace.streams.commit.effort import Effort
from headrace.streams.commit.membership import Membership
from headrace.streams.commit.transactions import Transactions
from headrace.streams.config.config import StreamsConfig
from headrace.streams.contact.contact import Contact
from headrace.streams.global_tables.global_tables import GlobalTables
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.records.blame import refused_record
from headrace.streams.records.failures import describe_failure
from headrace.streams.seams.clients import (
    Clock,
    Consumer,
    Log,
    Probe,
    Producer,
    TopicPartition,
)
from headrace.streams.task.task import Task
from headrace.streams.tasks.gate_watch import Gate
from headrace.streams.tasks.input_identity import AskIds, InputIdentity
from headrace.streams.tasks.intake import Intake
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.tasks.window_idle import IdleWindows
from headrace.streams.upkeep.retention import RetentionGuard
from headrace.streams.upkeep.topic_watch import TopicWatch
from headrace.streams.worker.pace import Pace
from headrace.streams.worker_errors import (
    AbortableError,
    MemberFencedError,
    OffsetLostError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordRefusedError,
    RestoreLostError,
    TaskCorruptedError,
    TaskMigratedError,
)
from headrace.topology.context.punctuation import NEVER_MS

UNKNOWN_LOOK_S = 1.0
"""How often to look for partitions that the group has given out and that are not known yet."""


class WorkerListener(Protocol):
    """Hears what a worker does; called in the worker's thread."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks changed."""

    def on_running(self) -> None:
        """All tasks of the worker process records."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """A commit is final, local state included."""


class SilentListener:
    """Does nothing: what is used where nobody asked."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Do nothing."""

    def on_running(self) -> None:
        """Do nothing."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """Do nothing."""


class Worker:
    """Runs tasks until it is told to stop.

    Args:
        config: the settings.
        consumer: of the group.
        make_producer: makes a producer of this worker's identity; called again to replace one.
        make_tasks: makes the task table, given the way to the present producer and what asks for
            a commit.
        make_membership: makes the place in the group, given the way to what it gives out.
        restorer: restores the tasks.
        global_tables: of this process.
        topic_ids: the changelogs' topic ids.
        clock: the worker's.
        listener: hears what happens.
        probe: called between the steps of commit and restore.
        purger: called after a commit with its tasks.
        retention: keeps changelogs from losing windows that are open.
        topic_watch: looks at the topics now and then.
        ask_topic_ids: asks the cluster for the ids of topics.
        contact: knows whether brokers can be reached, and whether they let this client in.
        keep_offsets_s: how often offsets that do not move are committed again, in seconds.
        gate: what tasks wait for before they begin.
        first_commit_id: commits are numbered from here; random enough to be this worker's own.
        log: bound to the worker.
    """

    def __init__(
        self,
        *,
        config: StreamsConfig,
        consumer: Consumer,
        make_producer: Callable[[], Producer],
        make_tasks: Callable[[Callable[[], Producer], Callable[[], None]], Tasks],
        make_membership: Callable[[Callable[[], frozenset[TopicPartition]]], Membership],
        restorer: Restorer,
        global_tables: GlobalTables,
        topic_ids: dict[str, str],
        clock: Clock,
        listener: WorkerListener,
        probe: Probe,
        purger: Callable[[Sequence[Task]], None],
        retention: RetentionGuard,
        topic_watch: TopicWatch,
        ask_topic_ids: AskIds,
        contact: Contact,
        keep_offsets_s: float,
        gate: Gate,
        first_commit_id: int,
        log: Log,
    ) -> None:
        self._config = config
        self._consumer = consumer
        timeout_s = config.transaction_timeout_ms / 1000
        self._transactions = Transactions(
            make_producer, timeout_s=timeout_s, clock=clock, probe=probe, log=log
        )
        self._restorer = restorer
        self.global_tables = global_tables
        self._topic_ids = topic_ids
        self._clock = clock
        self._listener = listener
        self._probe = probe
        self._purger = purger
        self._retention = retention
        self._topic_watch = topic_watch
        self._gate = gate
        self._inputs = InputIdentity(
            ask_topic_ids,
            outputs=topic_watch.outputs,
            missing=topic_watch.look_soon,
            clock=clock,
            log=log,
        )
        self._contact = contact
        self._stop = threading.Event()
        self._commit_requested = threading.Event()
        self._was_running = False
        self._records = 0
        self.processed = 0
        """Records processed since the start, those of aborted transactions included."""
        self._commit_id = first_commit_id
        self._pace = Pace(config.max_poll_records)
        self._effort = Effort(config, clock=clock, log=log)
        self._lost: set[tuple[str, int]] = set()
        self._log = log
        self.tasks = make_tasks(lambda: self._transactions.producer, self.request_commit)
        self._membership = make_membership(lambda: self.tasks.leads)
        self._intake = Intake(config, consumer, self.tasks, clock=clock)
        self._timing = CommitTiming(
            config, consumer, self.tasks, clock=clock, keep_offsets_s=keep_offsets_s
        )
        self._idle_windows = IdleWindows(
            config.window_close_idle_ms, consumer, lambda: self.tasks.running, clock=clock
        )

    # -- the life of a worker ----------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end after what it is doing; may be called from anywhere."""
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
        except BaseException:
            self.give_up()
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
        self._commit_requested.set()

    def turn(self) -> None:
        """Go once around the loop."""
        with self._reacting():
            self._membership.turn()
            self._poll(self._wait_s())
            self._advance()
            self.global_tables.update()
            processed = self._process()
            self._close_idle_windows()
            self._commit_if_due(processed)
            if self.tasks.has_unknown:
                self._topic_watch.look_within(UNKNOWN_LOOK_S)
            self._topic_watch.turn()
            self._contact.turn()

    def finish(self) -> None:
        """Close cleanly: commit what was done, keep what is committed, leave as told."""
        self._log.info("worker_stopping")
        try:
            self._commit(self.tasks.running)
        except _REACTED_TO as error:
            self._log.warning("last_commit_failed", reason=str(error))
            self._abort_quietly()
        self._consumer.close(leave=self._config.on_stop == "leave")
        self.tasks.release(self.tasks.owned)
        self._restorer.close()
        self.global_tables.close()
        self._transactions.close()

    def give_up(self) -> None:
        """Close after an error: nothing uncommitted may survive, and nothing may hide the error."""
        for step in (
            self._abort_quietly,
            lambda: self._consumer.close(leave=self._config.on_stop == "leave"),
            lambda: self.tasks.release(self.tasks.owned),
            self._restorer.close,
            self.global_tables.close,
            self._transactions.close,
        ):
            try:
                step()
            except Exception as error:
                full = self._config.log_errors == "full"
                reason = describe_failure(error, full=full).reason
                self._log.warning("close_failed", reason=reason)

    def _abort_quietly(self) -> None:
        # Without running tasks the callbacks of a closing consumer find nothing to commit.
        self.tasks.rebuild()
        self._transactions.forget()

    # -- the group's word (RebalanceListener) --------------------------------------------------

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Own more tasks."""
        if self._membership.hear():
            self._abort()
        self._membership.assigned()
        self._topic_watch.look_soon()
        self.tasks.assign(partitions)
        self._was_running = False
        self._log.info("partitions_assigned", partitions=[str(p) for p in partitions])
        self._hear_assignment()

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit while the tasks are still this worker's, then let go of them."""
        leaving = self.tasks.owned_of(partitions)
        self._log.info("partitions_revoked", partitions=[str(p) for p in partitions])
        if self._membership.hear():
            self._abort()
        elif leaving:
            with self._reacting():
                # One transaction holds the work of all tasks, so all of it is committed.
                self._commit(self.tasks.running)
        self._let_go(leaving)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop tasks that are somebody else's already, with all that is uncommitted."""
        self._log.warning("partitions_lost", partitions=[str(p) for p in partitions])
        self._abort()
        self._let_go(self.tasks.owned_of(partitions))

    def _let_go(self, tasks: Sequence[TaskId]) -> None:
        self.tasks.release(tasks)
        self._intake.keep_to_running()
        self._hear_assignment()

    def _hear_assignment(self) -> None:
        self._gate.on_assignment(self.tasks.owned)
        self._listener.on_assignment(self.tasks.owned)

    # -- the steps of a turn -------------------------------------------------------------------

    def _wait_s(self) -> float:
        """How long a poll may wait for records."""
        if self._restorer.is_active or any(map(self._intake.is_ready, self.tasks.running)):
            return 0.0
        idle_s = min(self._config.poll_ms / 1000, self._until_punctuation_s())
        wait_s = self._intake.wait_s()
        if wait_s is not None:
            idle_s = min(idle_s, wait_s)
        soon = self._timing.waits_to_be_drained() or self.tasks.are_waiting
        return min(idle_s, 0.005) if soon else idle_s

    def _until_punctuation_s(self) -> float:
        """How long it is until a punctuator is due by the wall clock."""
        due_ms = min((task.facts.wall_due_ms for task in self.tasks.running), default=NEVER_MS)
        return math.inf if due_ms == NEVER_MS else max(0, due_ms - self._clock.now_ms()) / 1000

    def _poll(self, idle_s: float) -> None:
        batches = self._consumer.poll(self._intake.room(), idle_s)
        self._effort.polled()
        for place, records in batches.items():
            task = self.tasks.reader_of(place)
            # A callback of this very poll may have taken the partition away.
            if task is not None:
                self.tasks.key_sample.look(place, records)
                task.add(place, records)

    def _advance(self) -> None:
        if not self._gate.is_passed():
            return
        with self._effort.preparing():
            self._advance_tasks()

    def _advance_tasks(self) -> None:
        self.tasks.advance()
        if self._restorer.is_active:
            idle = not any(task.queued() for task in self.tasks.running)
            for task in self._restorer.advance(0.1, 0.1 if idle else 0.0):
                self.tasks.run(task)
        if not self._was_running and self.tasks.owned and self.tasks.all_running:
            self._was_running = True
            self._listener.on_running()

    def _process(self) -> int:
        processed = 0
        for task in self._effort.in_turn(self.tasks.running):
            must_wait = self._intake.must_wait(task)
            if not task.queued():
                continue
            if must_wait:
                self._intake.hold_back(task)
                continue
            self._idle_windows.busy(task)
            self._transactions.begin()
            processed += self._process_some(task)
            self._intake.take_again(task)
            if self._effort.ends_turn(task):
                break
        punctuated = self._punctuate()
        if processed or punctuated:
            with self._blaming_inputs():
                self._transactions.producer.pressure(self._config.task_timeout_ms / 1000)
        self._records += processed
        self.processed += processed
        return processed

    def _punctuate(self) -> bool:
        """Call the punctuators that are due by the wall clock; returns whether any was."""
        due = [task for task in self.tasks.running if task.is_due()]
        for task in due:
            self._transactions.begin()
            with self._blaming_inputs(), self._working():
                task.punctuate()
        return bool(due)

    def _close_idle_windows(self) -> None:
        due = self._idle_windows.due()
        if not due:
            return
        self._log.info("idle_windows_closed", tasks=[str(task.id) for task in due])
        for task in due:
            self._transactions.begin()
            with self._blaming_inputs(), self._working():
                task.close_idle()

    def _process_some(self, task: Task) -> int:
        started = self._clock.monotonic_s()
        with self._blaming_inputs(), self._working():
            count = task.process(1 if self._effort.is_careful else self._pace.chunk)
            self._pace.learn(count, self._clock.monotonic_s() - started)
            if task.held_back() * _HELD_BACK_BYTES > self._config.statestore_cache_max_bytes:
                task.flush()
        return count

    def _working(self) -> AbstractContextManager[None]:
        return self._effort.working(self._transactions.producer)

    @contextmanager
    def _blaming_inputs(self) -> Iterator[None]:
        """Say of a record that was refused after it was sent which input it came from."""
        try:
            yield
        except RecordRefusedError as error:
            suspects = [task.suspect() for task in self.tasks.running]
            raise refused_record(suspects, error, now_ms=self._clock.now_ms()) from error

    # -- committing ----------------------------------------------------------------------------

    def _commit_if_due(self, processed: int) -> None:
        if self._timing.is_due_for_all():
            self._commit(self.tasks.running, everything=True)
            return
        requested = self._commit_requested.is_set()
        if requested:
            self._commit_requested.clear()
        requested = requested or self._effort.is_enough
        dirty = [task for task in self.tasks.running if task.needs_commit()]
        if not dirty:
            self._timing.nothing_to_commit()
        elif requested or self._timing.is_due(dirty, processed=processed):
            # The group may have changed since the last poll; its word comes in polls alone, and a
            # commit under the membership of before would be refused.
            self._poll(idle_s=0.0)
            self._commit(self.tasks.running)

    def _commit(self, tasks: Sequence[Task], *, everything: bool = False) -> None:
        dirty = [task for task in tasks if everything or task.needs_commit()]
        if not dirty:
            return
        owned = set(self.tasks.owned)
        assert all(task.id in owned for task in dirty), "offsets of a task that is not owned"
        begun_s = self._clock.monotonic_s()
        done = self._effort.to_forgive(dirty)
        self._transactions.begin()
        self._commit_id += 1
        commit = Commit(
            self._transactions.producer,
            self._consumer.positions,
            self._topic_ids,
            self._clock,
            self._probe,
            self._retention.protect,
            self._inputs,
            self._working,
        )
        with self._blaming_inputs():
            commit.run(dirty, self._membership.metadata, self._commit_id)
        self._transactions.ended()
        self._timing.committed(begun_s, everything=everything)
        records, self._records = self._records, 0
        self._effort.committed(done, records)
        self._listener.on_commit([task.id for task in dirty], records)
        self._purger(dirty)
        self._retention.give_back([t.sub_topology for t in self.tasks.owned if t.partition == 0])

    # -- reactions -----------------------------------------------------------------------------

    @contextmanager
    def _reacting(self) -> Iterator[None]:
        """React to what a worker can put right itself; the rest goes on up and stops it."""
        try:
            yield
        except (AbortableError, TaskMigratedError) as error:
            # A topic that was deleted may be why, and the client does not say which.
            self._log.warning("transaction_aborted", reason=self._with_cause(str(error)))
            self._topic_watch.look_soon()
            self._abort()
        except (ProducerFencedError, OutcomeUnknownError) as error:
            self._void()
            self._transactions.replace(error)
            self._begin_all_anew()
        except MemberFencedError as error:
            self._log.warning("member_replaced", reason=str(error), advice=_MEMBER_REPLACED)
            self._abort()
            self._let_go(self.tasks.owned)
            self._membership.replace(error)
        except TaskCorruptedError as error:
            self._log.warning("state_rebuilt", tasks=sorted(error.tasks), reason=error.reason)
            self._abort()
            self.tasks.wipe(error.tasks)
        except OffsetLostError as error:
            self._begin_at_committed(error)
        except RestoreLostError as error:
            self._log.warning("restore_lost", tasks=sorted(error.tasks), reason=error.reason)
            self._abort()
            self.tasks.rebuild_all()

    def _abort(self) -> None:
        """Abort the transaction; the tasks begin anew from committed facts."""
        self._void()
        if not self._transactions.abort():
            self._begin_all_anew()
            return
        self._records = 0
        self.tasks.rebuild()
        self._intake.keep_to_running()

    def _void(self) -> None:
        """What was done since the last commit is void: see that it is not so for ever."""
        if self._effort.void(self.tasks.running):
            self._pace.start_small()

    def _begin_at_committed(self, error: OffsetLostError) -> None:
        """Read on from the committed offset, unless that is the one that is lost.

        Another worker may have the partition, and have had what it processed deleted.
        """
        reader = next((t for t in self.tasks.running if error.where in map(str, t.inputs)), None)
        if reader is not None:
            begun_at = next(c.offset for p, c in reader.start.items() if str(p) == error.where)
            if (error.where, begun_at) in self._lost:
                raise error
            self._lost.add((error.where, begun_at))
        self._topic_watch.look_soon()
        reason = self._with_cause(error.reason)
        self._log.warning("offset_lost", partition=error.where, reason=reason)
        self._abort()

    def _with_cause(self, reason: str) -> str:
        """What a client says, and what is wrong with the topics, if anything is."""
        cause = self._inputs.cause(self.tasks.running)
        return f"{reason}; {cause}" if cause and cause not in reason else reason

    def _begin_all_anew(self) -> None:
        """Begin all tasks anew after the producer was replaced, as they send with it."""
        self._records = 0
        self.tasks.rebuild_all()
        self._intake.keep_to_running()


_REACTED_TO = (
    AbortableError,
    TaskMigratedError,
    ProducerFencedError,
    OutcomeUnknownError,
    MemberFencedError,
    TaskCorruptedError,
)
_MEMBER_REPLACED = (
    "nothing is lost: it joins again and goes on behind the last commit, as after brokers that "
    "were away for longer than consumer.session.timeout.ms; act if it comes again while they are "
    "up: then another live worker has the same worker.id, and each needs its own"
)
_HELD_BACK_BYTES = 250
"""What one held-back update costs, roughly; its value is counted with the uncommitted rows."""
