"""What can go wrong, one class per reaction: who catches an error decides which class it is.

Messages say what happened, where, and what to do next; none carries a record's key or value. What
refuses a start is in `start_errors`, what the worker catches in `worker_errors`.

| class | caught by | reaction |
|---|---|---|
| `ConfigError`, `MissingTopicError`, `MisconfiguredTopicError` | nobody | stop, do not restart |
| `IdentityError`, `LocalStateError`, `RecordError` | nobody | stop, do not restart |
| `ProcessorFailedError` | nobody | stop, do not restart |
| `ResetUnfinishedError`, `TopologyChangedError` | nobody | stop, do not restart |
| `BackfillOpenError`, `VersionConflictError` | nobody | stop, do not restart |
| `ShutDownError` | nobody | stop, do not restart |
| `AccessError` (in `headrace.streams.kafka.access_errors`) | nobody | stop, do not restart |
| `TopicReplacedError`, `ChangelogLostError` (`plan/topic_errors.py`) | nobody | the same |
| `UnusableSinkError` (`external/connections.py`) | nobody | stop, do not restart |
| `ChangelogUnfinishedError` | nobody | stop, do not restart |
| `ResetRefusedError` | `headrace reset`, `offsets set` | say it, having changed nothing further |
| `StopRequestedError` | the application | stop, as it was asked to |
| `FatalClientError` | the supervisor | stop this worker, start it again |
| `GlobalTableLostError` | the supervisor | the same; the rows are read anew at the start |
| `GroupDeniedError` (likewise) | `headrace.streams.plan.deployed` | go on without it |
| `RecordRefusedError` | the worker | becomes a `RecordError` |
| `AbortableError` | the commit | abort, rebuild all tasks from committed facts |
| `OutcomeUnknownError` | the worker | replace the producer, rebuild all tasks |
| `ProducerFencedError` | the worker | the same; twice within a minute: `IdentityError` |
| `MemberFencedError` | the worker | drop all tasks, join anew; thrice a minute: `IdentityError` |
| `TaskMigratedError` | the worker | as `AbortableError`; the next poll brings the group's word |
| `TaskCorruptedError` | the worker | rebuild the local state of the named tasks |
| `OffsetLostError` | the worker | ask for the committed offset again; the same again: stop |
| `RestoreLostError` | the worker | ask for the changelogs' facts again, restore anew |
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from headrace.topology.context.environment import Headers
from headrace.topology.functions import Place


class StreamsError(Exception):
    """Base of every error that the runtime raises; catch it to report, not to go on."""

    functions: tuple[Place, ...] = ()
    """Where the user's function stands that failed, or those of which one did."""

    @property
    def function(self) -> str | None:
        """File, line and name of that function."""
        return " or ".join(map(str, self.functions)) or None


class ConfigError(StreamsError):
    """Settings are wrong; raised before anything starts, with every problem found at once.

    Nobody catches it: the worker stops and the supervisor does not start it again.

    Args:
        problems: one sentence or more for each wrong setting.

    Example:
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
    """A source or an output topic does not exist: at the start, or deleted while it runs.

    Nobody catches it: the worker stops, since state built on half of the input would be wrong.
    """

    def __init__(self, message: str, *, topics: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.topics = tuple(topics)


class MisconfiguredTopicError(StreamsError):
    """Topics do not fit the topology or each other.

    When an internal topic has another partition count or cleanup.policy than the topology needs,
    source topics that are joined have unequal partition counts, or a source topic grew past the
    changelog of its state. Nobody catches it: no record is read before someone put it right.
    """


class IdentityError(StreamsError):
    """Another live worker has this worker's identity (group.instance.id, transactional.id).

    Nobody catches it: two workers that fence each other in turn must not both be restarted.
    """


class RecordError(StreamsError):
    """A record that cannot be processed, where no handler said to skip it.

    Nobody catches it: a restart would meet the same record again. The record is named by its
    place; its key and value stay out of the message and of the logs.

    Args:
        message: what failed, without key, value or the text of an error that may quote them.
        offset: the record's offset; the last one that it may have where `first` is another.
        task_id: the task, as ``<sub-topology>_<partition>``.
        hint: what to do next; None where the code or the record is to blame.
        first: the first offset that the record may have, where only a range is known.
        unread: whether its bytes are refused, so that not the code alone may be to blame.

    Example:
        >>> print(RecordError("cannot deserialize the value", topic="orders", partition=3,
        ...     offset=17, timestamp=0, node="KSTREAM-SOURCE-0000000000", task_id="0_3"))
        cannot deserialize the value (orders-3 offset 17 timestamp 0, node \
KSTREAM-SOURCE-0000000000, task 0_3); nothing past it is committed: correct the code, or leave the \
record out with headrace skip orders 3 17 --app MODULE:APP
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
        self._is_told = hint is not None
        self.hint = self._hint("MODULE:APP") if hint is None else hint
        super().__init__(message)

    def told_for(self, target: str | None, again: Sequence[str] = ()) -> None:
        """Name the application in the message.

        Args:
            target: as `headrace` takes it; None where there is no cluster to leave the record out.
            again: the options that give a command the settings it runs with.
        """
        if not self._is_told:
            self.hint = self._hint(target, again)

    def _hint(self, target: str | None, again: Sequence[str] = ()) -> str:
        if self.first != self.offset:
            return "nothing past it is committed: correct the code or the data"
        step = "correct the code"
        if self._unread:
            step = "give a serde that reads it, or a deserialization.exception.handler"
        if target is not None:
            place = f"{self.topic} {self.partition} {self.offset}"
            app = shlex.join([target, *again])
            step += f", or leave the record out with headrace skip {place} --app {app}"
        return f"nothing past it is committed: {step}"

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition} offset {self.offset}"
        if self.first != self.offset:
            where = f"{self.topic}-{self.partition} offsets {self.first} to {self.offset}"
        if self.timestamp is not None:
            where += f" timestamp {self.timestamp}"
        places = {"node": self.node, "function": self.function, "store": self.store}
        for label, value in {**places, "task": self.task_id}.items():
            if value is not None:
                where += f", {label} {value}"
        return f"{self.message} ({where}); {self.hint}"


class ProcessorFailedError(StreamsError):
    """A processor failed where no record is at hand: in `init`, or in a punctuator.

    Nobody catches it: nothing of what the processor did is committed, and a restart would meet the
    same code again.

    Args:
        message: what failed, without the text of an error that may quote a record.

    Example:
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
        places = {"node": self.node, "function": self.function, "store": self.store}
        named = {**places, "task": self.task_id}.items()
        where = ", ".join(f"{label} {value}" for label, value in named if value is not None)
        return (
            f"{self.message} ({where}), outside of any record; nothing of it is committed: "
            "correct the code"
        )


class LocalStateError(StreamsError):
    """Local state cannot be used as it is: not writable, of another release, or held by others.

    Nobody catches it: the files are intact, and what is wrong is outside of this process.
    """


class StopRequestedError(StreamsError):
    """The application was asked to stop while it waited for the cluster.

    When the brokers do not answer. `KafkaStreams` catches it: the stop is a clean one.
    """


class FatalClientError(StreamsError):
    """A Kafka client cannot go on: an unsupported broker, a fatal client error.

    The worker does not catch it: it stops, and the supervisor may start it again with back-off.
    """


class GlobalTableLostError(FatalClientError):
    """The rows of a global table cannot be followed any more: they are to be read anew.

    When records of its topic were deleted before they were read, the topic was created anew, or
    the local files are broken. The worker does not catch it: with its next start, which the
    supervisor sees to, it reads the topic from its beginning before it goes on.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store = store
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the rows of global table {self.store} must be read anew: {self.reason}; start the "
            "application again, which does so"
        )


# What refuses a start, or a reset: see the table in `headrace.streams.errors`.


class ResetUnfinishedError(StreamsError):
    """The group's offsets are marked by a reset that began and did not come to its end.

    Nobody catches it: topics and state of before may still be there, and would be counted upon.
    """


class ChangelogUnfinishedError(StreamsError):
    """Changelogs are being written from local rows, and are not complete.

    Nobody catches it: a task that began now would find a part of its rows.
    """


class BackfillOpenError(StreamsError):
    """A backfill is being handed over to the application, or was left half way.

    Nobody catches it: state that is half written would be counted upon.

    Args:
        is_dropped: whether it is being dropped, and not finished.

    Example:
        >>> print(BackfillOpenError("shop", "bf-1"))
        backfill bf-1 of the application shop is open, and its state may be half written, so \
nothing was started; finish it with `headrace backfill ... --id bf-1`, or drop it with `headrace \
backfill ... --drop --id bf-1`, then start
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
                f"{what} is being dropped, and its state may be there in part, so nothing was "
                f"started; finish that with {drop}, again, then start"
            )
        return (
            f"{what} is open, and its state may be half written, so nothing was started; finish it "
            f"with `headrace backfill ... --id {self.backfill_id}`, or drop it with {drop}, then "
            "start"
        )


class ShutDownError(StreamsError):
    """Another process of the application has asked for all of them to stop.

    Nobody catches it: whoever starts the application again begins anew.

    Args:
        host: where that process runs.
        process: its number there.
        error: what stopped it.
        reason: the error's text.

    Example:
        >>> print(ShutDownError("shop", "db-3", 41, "RecordError", "in-0 offset 7 cannot be read"))
        the application shop is shut down everywhere, which its uncaught_error_handler has \
answered on db-3 (process 41) to RecordError: in-0 offset 7 cannot be read; put that right, then \
start again
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
            f"the application {application} is shut down everywhere, which its "
            f"uncaught_error_handler has answered on {host} (process {process}) to {error}: "
            f"{reason}; put that right, then start again"
        )


class TopologyChangedError(StreamsError):
    """The topology would lose or misread state that is deployed, and nobody has accepted that.

    Nobody catches it: the program must be corrected, or the change be accepted.

    Args:
        changes: what would happen, each with its way out.
        code: what ``topology.change.accept`` must be for this change to be accepted.

    Example:
        >>> print(TopologyChangedError(["store a is called b now: name it a"], "0f3c"))
        the topology does not fit what is deployed, and nothing was started:
        - store a is called b now: name it a
        To start all the same and lose that, set topology.change.accept=0f3c
    """

    def __init__(self, changes: Iterable[str], code: str) -> None:
        self.changes = tuple(changes)
        self.code = code
        lines = "".join(f"\n- {change}" for change in self.changes)
        super().__init__(
            f"the topology does not fit what is deployed, and nothing was started:{lines}\n"
            f"To start all the same and lose that, set topology.change.accept={code}"
        )


class VersionConflictError(StreamsError):
    """Live workers run another version, with which this one would own partitions twice.

    Nobody catches it: the other workers must be stopped first.

    Args:
        application_id: the application.
        members: the live members of the group that run another version.
        reasons: what both versions would own, or why that is not known.

    Example:
        >>> print(VersionConflictError("shop", ["w1"], ["topic a is assigned with b here and with \
a there"]))
        1 live member of group shop runs another version of the topology, and this one does not \
run beside it: both would own the same partitions and double or lose output (topic a is assigned \
with b here and with a there; members: w1). Stop all workers, then start the new version
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
            "version of the topology, and this one does not run beside "
            f"{'it' if len(members) == 1 else 'them'}: both would own the same partitions and "
            f"double or lose output ({'; '.join(reasons)}; members: {', '.join(members)}). Stop "
            "all workers, then start the new version"
        )


class ResetRefusedError(StreamsError):
    """What changes a stopped application cannot be done now: it runs, or is not as it was shown.

    `headrace reset`, `offsets set` and `changelog restore-from-local` say it and end; the message
    says what to do before the next try.
    """


# What the worker catches, one class per reaction: see the table in `headrace.streams.errors`.


class TaskMigratedError(StreamsError):
    """This worker lost its partitions: a stale generation, an unknown member, a missed poll.

    The worker catches it: it aborts, and hears with the next poll which tasks are still its own.
    Another worker may already process the same records.
    """


class MemberFencedError(StreamsError):
    """The group does not accept this member any more, and its consumer is of no more use.

    When another consumer joined with the same group.instance.id; also when the group's coordinator
    was away for longer than the session, as the client then forgets who it was and the next
    coordinator does not. The worker catches it: all tasks are dropped without a commit, and a new
    consumer joins. Six times within a minute it means that another live worker has this identity.
    """


STATE_REBUILT = (
    "nothing is lost: the rows come from the changelogs, but those of stores that have none; act "
    "if it comes again: then look at the disk"
)
"""What to do about the event state_rebuilt."""


class TaskCorruptedError(StreamsError):
    """Local state that is proved wrong and must be rebuilt from the changelog.

    When the changelog is another topic than the one the state came from, the local position lies
    beyond its end, or tombstones newer than the position may be compacted away. The worker
    catches it: it rebuilds the named tasks and leaves the others alone.

    Args:
        tasks: the tasks' ids, as ``<sub-topology>_<partition>``.
    """

    def __init__(self, tasks: Iterable[str], reason: str) -> None:
        self.tasks = frozenset(tasks)
        self.reason = reason
        super().__init__(tuple(self.tasks), reason)

    def __str__(self) -> str:
        return f"local state of task {', '.join(sorted(self.tasks))} must be rebuilt: {self.reason}"


class RestoreLostError(StreamsError):
    """A changelog was shortened below where its restore was reading.

    When retention or a deletion of records moves the start of the log meanwhile. The worker
    catches it: the tasks ask for the facts again and go on from the new start.
    """

    def __init__(self, tasks: Iterable[str], reason: str) -> None:
        self.tasks = frozenset(tasks)
        self.reason = reason
        super().__init__(tuple(self.tasks), reason)

    def __str__(self) -> str:
        return f"the restore of task {', '.join(sorted(self.tasks))} begins anew: {self.reason}"


class OutcomeUnknownError(StreamsError):
    """The outcome of a commit is not known, or the producer cannot be used any more.

    When a commit timed out. The worker catches it: it replaces the producer, which decides the old
    transaction, and rebuilds all tasks from what is committed then.
    """


class ProducerFencedError(StreamsError):
    """The broker does not accept this producer any more.

    When its transaction expired at the broker, or another producer has its transactional.id. The
    worker catches it and does as for `OutcomeUnknownError`. Twice within a minute, without a
    transaction that was open for longer than transaction.timeout.ms, it means that another live
    worker has this identity.
    """


class AbortableError(StreamsError):
    """The transaction cannot be committed, but the producer and the membership are good.

    The worker catches it: it aborts, rebuilds all tasks from committed facts, and goes on.
    """


class RecordRefusedError(StreamsError):
    """A broker refused a record for good, some time after it was sent.

    The worker catches it and raises a `RecordError` that says which input it came from. To send
    it again, or to abort and process the input again, would end the same.

    Args:
        message: what the broker says, without key and value.
        topic: the topic that refuses it, or None where the client does not tell.
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
    """The next offset to read is not on the broker: records were deleted before they were read.

    The worker catches it once for each offset, as another worker may have the partition by now,
    and have moved on. The second time nobody does: going on elsewhere would lose or repeat records
    without anyone having said so. Retention ran past the application, the topic is a new one, or
    somebody set an offset beyond its end.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the next offset of {self.where} is not on the broker ({self.reason}): records were "
            "deleted before they were read, the topic is a new one, or somebody set the offset "
            "beyond its end; decide where to go on, stop all workers and set the group's offset "
            "there with headrace offsets set"
        )


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Return the bytes of a record's parts.

    Example:
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
    """A record is larger than its topic takes; the task adds which input it came from.

    Args:
        size: bytes of key, value and headers, where known.
        limit: the topic's max.message.bytes, where known.
        key_size: bytes of the key of a store's row, where it is one; the key is for nobody to read.
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
                f"a record{size}{row} is larger than {self.topic} took when this worker started; "
                f"its max.message.bytes is {self.limit} now, or a batch is larger than that. "
                "Restart the workers to use the new limit, or store less per key"
            )
        return (
            f"a record{size} is larger than the max.message.bytes{limit} of {self.topic}{row}; "
            "store less per key, or raise the topic's max.message.bytes"
        )


class LetterTooLargeError(RecordTooLargeError):
    """A dead letter is larger than its topic takes, even without what describes the error."""

    def __str__(self) -> str:
        limit = f" of {self.limit}" if self.limit is not None else ""
        return (
            f"the record is to become a dead letter, whose {self.size} bytes, without a word about "
            f"the error, are larger than the max.message.bytes{limit} of {self.topic}; raise it "
            "above that of the topic that the record was read from"
        )
