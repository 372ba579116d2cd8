"""Errors of the runtime, with a class for each reaction: the class decides which code catches it.

A message states the problem, its place and the next step; none contains a record's key or value.

| class | caught by | reaction |
|---|---|---|
| `ConfigError`, `MissingTopicError`, `MisconfiguredTopicError` | nobody | stop, do not restart |
| `IdentityError`, `LocalStateError`, `RecordError` | nobody | stop, do not restart |
| `ProcessorFailedError` | nobody | stop, do not restart |
| `ResetUnfinishedError`, `TopologyChangedError` | nobody | stop, do not restart |
| `BackfillOpenError`, `VersionConflictError` | nobody | stop, do not restart |
| `ShutDownError` | nobody | stop, do not restart |
| `AccessError` (in `headrace.streams.kafka.acls`) | nobody | stop, do not restart |
| `TopicReplacedError`, `ChangelogLostError` (`plan/topic_errors.py`) | nobody | the same |
| `UnusableSinkError` (`tasks/sink_connections.py`) | nobody | stop, do not restart |
| `ChangelogUnfinishedError` | nobody | stop, do not restart |
| `ResetRefusedError` | `headrace reset`, `offsets set` | print it; nothing further is changed |
| `StopRequestedError` | the application | stop cleanly |
| `FatalClientError` | the supervisor | stop this worker and restart it |
| `GlobalTableLostError` | the supervisor | the same; the start reads the table's topic again |
| `GroupDeniedError` (`acls`) | `headrace.streams.plan.deployed` | continue without it |
| `RecordRefusedError` | the worker | raise a `RecordError` instead |
| `AbortableError` | the commit | abort, rebuild all tasks from committed state |
| `OutcomeUnknownError` | the worker | replace the producer, rebuild all tasks |
| `ProducerFencedError` | the worker | the same; twice within a minute: `IdentityError` |
| `MemberFencedError` | the worker | drop all tasks, rejoin; six times a minute: `IdentityError` |
| `TaskMigratedError` | the worker | as `AbortableError`; the next poll delivers the assignment |
| `TaskCorruptedError` | the worker | rebuild the local state of the named tasks |
| `OffsetLostError` | the worker | fetch the committed offset again; stop if it is lost again |
| `RestoreLostError` | the worker | read the changelogs' start offsets again, restart the restore |
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from headrace.topology.context.environment import Headers
from headrace.topology.functions import SourceLocation


class StreamsError(Exception):
    """Base class of all runtime errors; catch it to report an error, not to continue."""

    functions: tuple[SourceLocation, ...] = ()
    """Location of the failed user function; several if the failed call is not known."""

    @property
    def function(self) -> str | None:
        """File, line and name of the failed user function."""
        return " or ".join(map(str, self.functions)) or None


class ConfigError(StreamsError):
    """Invalid settings; raised before anything starts, with all problems listed.

    It is not handled: the worker stops and the supervisor does not restart it.

    Args:
        problems: one or more sentences for each invalid setting.

    Examples:
        >>> print(ConfigError("poll.ms must be at least 0, not -1", "state.dir is empty"))
        2 settings are wrong:
        - poll.ms must be at least 0, not -1
        - state.dir is empty
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(*problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = "".join(f"\n- {problem}" for problem in self.problems)
        return f"{len(self.problems)} settings are wrong:{lines}"


class MissingTopicError(StreamsError):
    """Source or output topic that does not exist, at the start or because it was deleted later.

    It is not handled: the worker stops, because state built from part of the input would be wrong.
    """

    def __init__(self, message: str, *, topics: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.topics = tuple(topics)


class MisconfiguredTopicError(StreamsError):
    """Topics that do not match the topology or each other.

    Raised if an internal topic has a different partition count or cleanup.policy than the topology
    requires, if joined source topics have unequal partition counts, or if a source topic has more
    partitions than the changelog of its state. It is not handled: no record is read before the
    topics are corrected.
    """


class IdentityError(StreamsError):
    """Another live worker with this worker's identity (group.instance.id, transactional.id).

    It is not handled: if two workers fence each other, restarting both would repeat it forever.
    """


ARCHIVE_ROWS = -(1 << 60)
"""Number of the first row of a partition in an archive without offsets (see
`headrace.spark_bridge`); lower than every offset of Kafka."""


def describe_offsets(topic: str, partition: int, first: int, last: int) -> str:
    """Describe the position of an input record, or of the possible records.

    >>> describe_offsets("orders", 3, 17, 17)
    'orders-3 offset 17'
    >>> describe_offsets("orders", 3, ARCHIVE_ROWS, ARCHIVE_ROWS + 9)
    'rows 1 to 10 by time of partition 3 in the archive of orders'
    """
    if first < 0 <= last:
        return f"{topic}-{partition} up to offset {last}, or its archive"
    start = 0 if first >= 0 else ARCHIVE_ROWS - 1
    span = f" {last - start}" if first == last else f"s {first - start} to {last - start}"
    if first >= 0:
        return f"{topic}-{partition} offset{span}"
    return f"row{span} by time of partition {partition} in the archive of {topic}"


class RecordError(StreamsError):
    """Record that cannot be processed and that no exception handler skips.

    It is not handled: a restart would fail on the same record. The message names the record by
    topic, partition and offset; its key and value appear neither in the message nor in the log.

    Args:
        message: the failure, without key, value or the text of an error that may quote them.
        offset: the record's offset; the last possible offset if `first` differs.
        task_id: the task, as ``<sub-topology>_<partition>``.
        hint: the next step; None if the code or the record must be corrected.
        first: the first possible offset, if only a range is known.
        unread: whether deserialization failed, so that a serde or a handler may be the fix.

    Examples:
        >>> print(RecordError("cannot deserialize the value", topic="orders", partition=3,
        ...     offset=17, timestamp=0, node="KSTREAM-SOURCE-0000000000", task_id="0_3"))
        cannot deserialize the value (orders-3 offset 17 timestamp 0, node \
KSTREAM-SOURCE-0000000000, task 0_3); nothing past it is committed: correct the code, or skip the \
record with headrace skip orders 3 17 --app MODULE:APP
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int | None = None,
        node: str | None = None,
        store: str | None = None,
        task_id: str | None = None,
        hint: str | None = None,
        first: int | None = None,
        unread: bool = False,
    ) -> None:
        self.first = offset if first is None else first
        self.message = message
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.node = node
        self.store = store
        self.task_id = task_id
        self._unread = unread
        self.has_own_hint = hint is not None
        self.position: str | None = None
        """Description of the record's position, in place of its offset and timestamp."""
        self.hint = self._hint("MODULE:APP") if hint is None else hint
        super().__init__(message)

    def told_for(self, target: str | None, again: Sequence[str] = ()) -> None:
        """Name the application in the message's advice.

        Args:
            target: MODULE:APP; None without a cluster, where `headrace skip` does not apply.
            again: command-line options that reproduce the settings of this run.
        """
        if not self.has_own_hint:
            self.hint = self._hint(target, again)

    def _hint(self, target: str | None, again: Sequence[str] = ()) -> str:
        if self.first != self.offset:
            return "nothing past it is committed: correct the code or the data"
        step = "correct the code"
        if self._unread:
            step = "give a serde that reads it, or a deserialization.exception.handler"
        if target is not None:
            position = f"{self.topic} {self.partition} {self.offset}"
            app = shlex.join([target, *again])
            step += f", or skip the record with headrace skip {position} --app {app}"
        return f"nothing past it is committed: {step}"

    def __str__(self) -> str:
        where = describe_offsets(self.topic, self.partition, self.first, self.offset)
        if self.timestamp is not None:
            where += f" timestamp {self.timestamp}"
        where = ", ".join([self.position or where, *_location_fields(self)])
        return f"{self.message} ({where}); {self.hint}"


class ProcessorFailedError(StreamsError):
    """Processor failure outside of any record: in `init` or in a punctuator.

    It is not handled: nothing that the processor did is committed, and a restart would fail again.

    Args:
        message: the failure, without the text of an error that may quote a record.

    Examples:
        >>> print(ProcessorFailedError("a user function raised KeyError", node="n", task_id="0_3"))
        a user function raised KeyError (node n, task 0_3), outside of any record; nothing of it \
is committed: correct the code
    """

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        store: str | None = None,
        task_id: str | None = None,
    ) -> None:
        self.message = message
        self.node = node
        self.store = store
        self.task_id = task_id
        super().__init__(message)

    def __str__(self) -> str:
        where = ", ".join(_location_fields(self))
        return (
            f"{self.message} ({where}), outside of any record; nothing of it is committed: "
            "correct the code"
        )


def _location_fields(error: RecordError | ProcessorFailedError) -> list[str]:
    fields = {"node": error.node, "function": error.function, "store": error.store}
    named = {**fields, "task": error.task_id}.items()
    return [f"{label} {value}" for label, value in named if value is not None]


class LocalStateError(StreamsError):
    """Local state that cannot be used: not writable, written by another release, or locked.

    It is not handled: the files are intact, and the cause is outside of this process.
    """


class StopRequestedError(StreamsError):
    """Stop request received while the application waited for the cluster.

    Raised if the brokers do not answer. `KafkaStreams` catches it and stops cleanly.
    """


class FatalClientError(StreamsError):
    """Kafka client that cannot continue: an unsupported broker, or a fatal client error.

    The worker does not catch it: it stops, and the supervisor may restart it with back-off.
    """


class GlobalTableLostError(FatalClientError):
    """Global table that can no longer follow its topic and must be read again from the beginning.

    Raised if records of its topic were deleted before they were read, if the topic was re-created,
    or if the local files are broken. The worker does not catch it: the supervisor restarts it, and
    the next start reads the topic from its beginning.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store = store
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the rows of global table {self.store} must be read again: {self.reason}. Restart the "
            "application"
        )


# Errors that prevent a start or a reset: see the table in the module's docstring.


class ResetUnfinishedError(StreamsError):
    """Group offsets marked by a reset that started and did not finish.

    It is not handled: topics and state from before the reset may still exist and would be used.
    """


class ChangelogUnfinishedError(StreamsError):
    """Changelogs that are being written from local rows and are not complete.

    It is not handled: a task that started now would restore only a part of its rows.
    """


class BackfillOpenError(StreamsError):
    """Backfill whose handover to the application is in progress or was interrupted.

    It is not handled: half-written state would be used.

    Args:
        is_dropped: whether the backfill is being dropped instead of finished.

    Examples:
        >>> print(BackfillOpenError("shop", "bf-1"))
        backfill bf-1 of the application shop is open, and its state may be incomplete, so \
the application did not start; finish it with `headrace backfill ... --id bf-1`, or drop it with \
`headrace backfill ... --drop --id bf-1`, then start
    """

    def __init__(self, application_id: str, backfill_id: str, *, is_dropped: bool = False) -> None:
        super().__init__(application_id, backfill_id)
        self.application_id = application_id
        self.backfill_id = backfill_id
        self.is_dropped = is_dropped

    def __str__(self) -> str:
        drop = f"`headrace backfill ... --drop --id {self.backfill_id}`"
        what = f"backfill {self.backfill_id} of the application {self.application_id}"
        if self.is_dropped:
            return (
                f"{what} is being dropped, and part of its state may remain, so the application "
                f"did not start; finish the drop with {drop}, then start"
            )
        return (
            f"{what} is open, and its state may be incomplete, so the application did not start; "
            f"finish it with `headrace backfill ... --id {self.backfill_id}`, or drop it with "
            f"{drop}, then start"
        )


class ShutDownError(StreamsError):
    """Shutdown request for all processes of the application, sent by another process.

    It is not handled: the next start of the application ignores the old request.

    Args:
        host: the host of that process.
        process: its process ID.
        error: class name of the error that stopped it.
        reason: the error's text.

    Examples:
        >>> print(ShutDownError("shop", "db-3", 41, "RecordError", "in-0 offset 7 cannot be read"))
        the application shop is shut down on all hosts: its uncaught_error_handler requested this \
on db-3 (process 41) after RecordError: in-0 offset 7 cannot be read. Fix the cause, then start \
again
    """

    def __init__(
        self, application_id: str, host: str, process: int, error: str, reason: str
    ) -> None:
        super().__init__(application_id, host, process, error, reason)
        self.application_id = application_id
        self.host = host
        self.process = process

    def __str__(self) -> str:
        application, host, process, error, reason = self.args
        return (
            f"the application {application} is shut down on all hosts: its uncaught_error_handler "
            f"requested this on {host} (process {process}) after {error}: {reason}. Fix the cause, "
            "then start again"
        )


OTHER_APPLICATION = (
    "No store and no topic is the same. If this is another application, give it its own "
    "application.id"
)


class TopologyChangedError(StreamsError):
    """Topology change that would lose or misread deployed state and is not accepted.

    It is not handled: correct the program or accept the change.

    Args:
        changes: each consequence with its fix.
        code: the value of ``topology.change.accept`` that accepts the change.
        is_other: whether no store and no topic is the same.

    Examples:
        >>> print(TopologyChangedError(["store a is called b now: name it a"], "0f3c"))
        the topology is incompatible with the deployed topology, so the application did not start:
        - store a is called b now: name it a
        To accept the loss and start, set topology.change.accept=0f3c
    """

    def __init__(self, changes: Iterable[str], code: str, *, is_other: bool = False) -> None:
        self.changes = tuple(changes)
        self.code = code
        lines = "".join(f"\n- {change}" for change in self.changes)
        if is_other:
            lines += f"\n{OTHER_APPLICATION}"
        super().__init__(
            "the topology is incompatible with the deployed topology, so the application did not "
            f"start:{lines}\nTo accept the loss and start, set topology.change.accept={code}"
        )


class VersionConflictError(StreamsError):
    """Live workers of another version that would own the same partitions as this version.

    It is not handled: stop the other workers first.

    Args:
        application_id: the application.
        members: live members of the group that run another version.
        reasons: the partitions that both versions would own, or why they are not known.

    Examples:
        >>> print(VersionConflictError("shop", ["w1"], ["topic a is assigned with b here and with \
a there"]))
        1 live member of group shop runs another version of the topology, which cannot run \
together with this version: both would own the same partitions and double or lose output (topic a \
is assigned with b here and with a there; members: w1). Stop all workers, then start the new version
    """

    def __init__(self, application_id: str, members: Sequence[str], reasons: Sequence[str]) -> None:
        super().__init__(application_id, members, reasons)
        self.members = tuple(members)
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        application_id, members, reasons = self.args
        who = "1 live member" if len(members) == 1 else f"{len(members)} live members"
        return (
            f"{who} of group {application_id} {'runs' if len(members) == 1 else 'run'} another "
            "version of the topology, which cannot run together with this version: both would own "
            f"the same partitions and double or lose output ({'; '.join(reasons)}; members: "
            f"{', '.join(members)}). Stop all workers, then start the new version"
        )


class ResetRefusedError(StreamsError):
    """Refused change of a stopped application: it runs, or it changed since the plan was shown.

    `headrace reset`, `offsets set` and `changelog restore-from-local` print it and exit; the
    message names the step to take before the next attempt.
    """


# Errors that the worker catches: see the table in the module's docstring.


class TaskMigratedError(StreamsError):
    """Partitions lost to another worker: a stale generation, an unknown member, or a missed poll.

    The worker catches it: it aborts, and the next poll delivers the tasks that it still owns.
    Another worker may already process the same records.
    """


class MemberFencedError(StreamsError):
    """Member that the group no longer accepts, so that its consumer cannot be used again.

    Raised if another consumer joined with the same group.instance.id. Also raised if the group
    coordinator was unavailable for longer than the session timeout, because the client then loses
    its member ID and the next coordinator does not know it. The worker catches it: it drops all
    tasks without a commit, and a new consumer joins. Six times within a minute it means that
    another live worker has this identity.
    """


STATE_REBUILT = (
    "nothing is lost, except rows of stores without a changelog. Act if it repeats: then check the "
    "disk"
)
"""What to do about the event state_rebuilt."""


class _TasksError(StreamsError):
    """Error of some tasks, with the reason."""

    def __init__(self, tasks: Iterable[str], reason: str) -> None:
        self.tasks = frozenset(tasks)
        self.reason = reason
        super().__init__(tuple(self.tasks), reason)


class TaskCorruptedError(_TasksError):
    """Local state that is known to be wrong and must be rebuilt from the changelog.

    Raised if the changelog is a different topic than the state was built from, if the local
    position is past its end, or if tombstones newer than the position may be compacted away. The
    worker catches it: it rebuilds the named tasks and leaves the others unchanged.

    Args:
        tasks: the tasks' ids, as ``<sub-topology>_<partition>``.
    """

    def __str__(self) -> str:
        return f"local state of task {', '.join(sorted(self.tasks))} must be rebuilt: {self.reason}"


class RestoreLostError(_TasksError):
    """Changelog whose start moved past the position of its restore.

    Raised if retention or a deletion of records moves the start of the log during the restore. The
    worker catches it: the tasks read the start offsets again and continue from the new start.
    """

    def __str__(self) -> str:
        return f"the restore of task {', '.join(sorted(self.tasks))} restarts: {self.reason}"


class OutcomeUnknownError(StreamsError):
    """Commit with an unknown outcome, or a producer that can no longer be used.

    Raised if a commit times out. The worker catches it: it replaces the producer, which completes
    or aborts the old transaction, and rebuilds all tasks from the committed state.
    """


class ProducerFencedError(StreamsError):
    """Producer that the broker no longer accepts.

    Raised if its transaction expired at the broker, or if another producer uses its
    transactional.id. The worker catches it and reacts as to `OutcomeUnknownError`. Twice within a
    minute, without a transaction that was open for longer than transaction.timeout.ms, it means
    that another live worker has this identity.
    """


class AbortableError(StreamsError):
    """Transaction that cannot be committed, while producer and membership are still valid.

    The worker catches it: it aborts, rebuilds all tasks from the committed state, and continues.
    """


class RecordRefusedError(StreamsError):
    """Record that a broker rejected permanently, some time after it was sent.

    The worker catches it and raises a `RecordError` that names the input record. Sending it again,
    or aborting and processing the input again, would fail in the same way.

    Args:
        message: the broker's message, without key and value.
        topic: the topic that rejects it, or None if the client does not report it.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None,
        partition: int | None,
        for_its_time: bool = False,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.for_its_time = for_its_time


class OffsetLostError(StreamsError):
    """Next input offset that no longer exists on the broker: its record was deleted unread.

    The worker catches it once for each offset, because another worker may own the partition by now
    and may have moved on. The second time it is not handled: continuing elsewhere would silently
    lose or repeat records. Either retention deleted unread records, or the topic was re-created, or
    an offset beyond its end was set.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the next offset of {self.where} is not on the broker ({self.reason}): records were "
            "deleted before they were read, the topic was re-created, or the offset was set beyond "
            "its end. Choose an offset, stop all workers and set it with headrace offsets set"
        )


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Return the size of a record in bytes: key, value and headers.

    Examples:
        >>> record_size(b"key", None, [("name", b"text")])
        11
        >>> record_size(b"key", None, None)
        3
    """
    size = len(key or b"") + len(value or b"")
    if headers:
        size += sum(len(name.encode(errors="replace")) + len(data or b"") for name, data in headers)
    return size


class RecordTooLargeError(StreamsError):
    """Record larger than its topic accepts; the task adds the input that it came from.

    Args:
        size: bytes of key, value and headers, if known.
        limit: the topic's max.message.bytes, if known.
        key_size: bytes of the key of a store's row; the key itself is never shown.
    """

    def __init__(
        self, topic: str, size: int | None, limit: int | None, *, key_size: int | None = None
    ) -> None:
        super().__init__(topic, size, limit, key_size)
        self.topic = topic
        self.size = size
        self.limit = limit
        self.key_size = key_size

    def __str__(self) -> str:
        size = f" of {self.size} bytes" if self.size is not None else ""
        limit = f" of {self.limit}" if self.limit is not None else ""
        row = "" if self.key_size is None else f" (a row whose key has {self.key_size} bytes)"
        if self.size is not None and self.limit is not None and self.size <= self.limit:
            return (
                f"a record{size}{row} is larger than {self.topic} accepted when this worker "
                f"started; its max.message.bytes is {self.limit} now, or a batch is larger than "
                "that. Restart the workers to use the new limit, or store less per key"
            )
        return (
            f"a record{size} is larger than the max.message.bytes{limit} of {self.topic}{row}; "
            "store less per key, or raise the topic's max.message.bytes"
        )


class LetterTooLargeError(RecordTooLargeError):
    """Dead letter larger than its topic accepts, even without headers that describe the error."""

    def __str__(self) -> str:
        limit = f" of {self.limit}" if self.limit is not None else ""
        return (
            f"the dead letter of the record has {self.size} bytes without headers of the error, "
            f"and is larger than the max.message.bytes{limit} of {self.topic}; raise it above that "
            "of the topic that the record was read from"
        )
