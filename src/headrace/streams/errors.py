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
| `AccessError` (in `headrace.streams.contact.access_errors`) | nobody | stop, do not restart |
| `TopicReplacedError`, `ChangelogLostError` (`plan/topic_errors.py`) | nobody | the same |
| `UnusableSinkError` (`external/connections.py`) | nobody | stop, do not restart |
| `ChangelogUnfinishedError` | nobody | stop, do not restart |
| `ResetRefusedError` | `headrace reset`, `offsets set` | say it, having changed nothing further |
| `StopRequestedError` | the application | stop, as it was asked to |
| `FatalClientError` | the supervisor | stop this worker, start it again |
| `GlobalTableLostError` | the supervisor | the same; the rows are read anew at the start |
| `GroupDeniedError` (likewise) | `headrace.streams.deployed.deployed` | go on without it |
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
