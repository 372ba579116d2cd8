"""Recovery of a worker from errors of clients and brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.streams.errors import (
    STATE_REBUILT,
    AbortableError,
    MemberFencedError,
    OffsetLostError,
    OutcomeUnknownError,
    ProducerFencedError,
    RestoreLostError,
    TaskCorruptedError,
    TaskMigratedError,
)
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.worker.parts import WorkerParts
from headrace.streams.worker.processing import Processing


@dataclass(frozen=True, slots=True)
class TaskOwnership:
    """Release of tasks, and notification about the owned tasks."""

    parts: WorkerParts

    def release(self, tasks: Sequence[TaskId]) -> None:
        self.parts.tasks.release(tasks)
        self.parts.fetch.retain_running()
        self.notify()

    def notify(self) -> None:
        owned = self.parts.tasks.owned
        self.parts.dependencies.gate.on_assignment(owned)
        self.parts.dependencies.listener.on_assignment(owned)


RECOVERABLE = (
    AbortableError,
    TaskMigratedError,
    ProducerFencedError,
    OutcomeUnknownError,
    MemberFencedError,
    TaskCorruptedError,
)
"""Errors of a commit from which a running worker recovers."""
_ABORTED = (
    "nothing is lost. Records since the last commit are processed again, as is usual while workers "
    "start or stop and partitions move. Act only if it continues"
)
_MEMBER_REPLACED = (
    "nothing is lost. The worker rejoins and continues after the last commit, as is usual if "
    "brokers were down for longer than consumer.session.timeout.ms. Act if it repeats while "
    "they are up: then another live worker has the same worker.id"
)
_OFFSET_LOST = (
    "nothing is lost so far. The worker continues at the committed offset, as is usual if another "
    "worker took the partition. If the committed offset is lost, too, the worker stops with an "
    "error. Act if it continues: then retention is too short"
)
_PARTITIONS_LOST = (
    "nothing is lost. Other workers process the uncommitted records again, as is usual after a "
    "pause of the process or of the brokers. Act only if it continues"
)
_RESTORE_LOST = (
    "nothing is lost. A changelog was truncated during the restore, which restarts. Act only if it "
    "continues: then the changelog loses records faster than they are read"
)


class Recovery:
    """Recovery from each kind of failure: abort, replace the producer, release tasks, or stop."""

    def __init__(
        self, parts: WorkerParts, *, ownership: TaskOwnership, processing: Processing
    ) -> None:
        self._tasks = parts.tasks
        self._transactions = parts.transactions
        self._membership = parts.membership
        self._fetch = parts.fetch
        self._input_identity = parts.input_identity
        self._topic_watch = parts.topic_watch
        self._counters = parts.counters
        self._log = parts.dependencies.log
        self._ownership = ownership
        self._processing = processing
        self._lost: set[tuple[str, int]] = set()
        """Committed offsets that were already lost once."""

    @contextmanager
    def handle_errors(self) -> Iterator[None]:
        """Handle recoverable errors of this block; other errors propagate and stop the worker."""
        try:
            yield
        except (AbortableError, TaskMigratedError) as error:
            self._counters.reacted("abort")
            # A deleted topic may be the cause, and the client does not name it.
            reason = self._with_cause(str(error))
            self._log.warning("transaction_aborted", reason=reason, advice=_ABORTED)
            self._topic_watch.check_soon()
            self.abort()
        except (ProducerFencedError, OutcomeUnknownError) as error:
            self._counters.reacted("replace_producer")
            self._processing.on_abort()
            self._transactions.replace(error, in_doubt=self._counters.in_doubt())
            self._restart_all()
        except MemberFencedError as error:
            self._counters.reacted("join_again")
            self._log.warning("member_replaced", reason=str(error), advice=_MEMBER_REPLACED)
            self.abort()
            self._ownership.release(self._tasks.owned)
            self._membership.replace(error)
        except TaskCorruptedError as error:
            self._counters.reacted("rebuild_state")
            self._log.warning(
                "state_rebuilt",
                tasks=sorted(error.tasks),
                reason=error.reason,
                advice=STATE_REBUILT,
            )
            self.abort()
            self._tasks.wipe(error.tasks)
        except OffsetLostError as error:
            self._counters.reacted("read_again")
            self._resume_at_committed(error)
        except RestoreLostError as error:
            self._counters.reacted("restore_again")
            self._log.warning(
                "restore_lost",
                tasks=sorted(error.tasks),
                reason=error.reason,
                advice=_RESTORE_LOST,
            )
            self.abort()
            self._tasks.rebuild_all()

    def abort(self) -> None:
        """Abort the transaction, and re-create the tasks from committed offsets."""
        self._processing.on_abort()
        if not self._transactions.abort():
            self._restart_all()
            return
        self._processing.discard_uncommitted()
        self._tasks.rebuild()
        self._fetch.retain_running()

    def handle_lost(self, partitions: Sequence[TopicPartition]) -> None:
        names = self._tasks.describe_inputs(partitions)
        self._log.warning("partitions_lost", partitions=names, advice=_PARTITIONS_LOST)
        self.abort()

    def abort_quietly(self) -> None:
        """Abort for the last time; tasks are stopped before the consumer's last callbacks."""
        self._tasks.rebuild()
        if not self._transactions.abort_finally():
            self._counters.in_doubt()

    def _restart_all(self) -> None:
        """Re-create all tasks after the producer was replaced, because they send with it."""
        self._processing.discard_uncommitted()
        self._tasks.rebuild_all()
        self._fetch.retain_running()

    def _resume_at_committed(self, error: OffsetLostError) -> None:
        """Resume at the committed offset, which an operator may have moved, if it is not lost."""
        running = self._tasks.running
        reader = next((t for t in running if error.where in map(str, t.inputs)), None)
        if reader is not None:
            begun_at = next(c.offset for p, c in reader.start.items() if str(p) == error.where)
            if (error.where, begun_at) in self._lost:
                raise error
            self._lost.add((error.where, begun_at))
        self._topic_watch.check_soon()
        reason = self._with_cause(error.reason)
        self._log.warning("offset_lost", partition=error.where, reason=reason, advice=_OFFSET_LOST)
        self.abort()

    def _with_cause(self, reason: str) -> str:
        cause = self._input_identity.cause(self._tasks.running)
        return f"{reason}; {cause}" if cause and cause not in reason else reason
