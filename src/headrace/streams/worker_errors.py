"""What the worker catches, one class per reaction: see the table in `headrace.streams.errors`."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.streams.errors import StreamsError
from headrace.topology.context.environment import Headers


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
