"""Errors of the topology package, with a class for each reaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import ClassVar, Literal

_EITHER = re.compile(r"value=(\S.*?) \(key=(.*?) for keys\)")
"""Text in serdes' messages, because a serde does not know whether it encodes keys or values."""


class TopologyError(Exception):
    """The topology cannot run as written; change the code that builds it.

    Raised while the topology is built, before any record is read.
    """


Part = Literal["key", "value"]
Arguments = Mapping[Part, str]
"""Names of a call's arguments that contain its serdes, if they differ from the part."""
NO_ARGUMENTS: Arguments = MappingProxyType({})


class SerdeError(Exception):
    """A key or value cannot be encoded or decoded; pass another serde or correct the data.

    The message contains the serde's name and the type of its argument, never the payload. A serde
    does not know whether it is used for keys or values; the caller sets `part`, which the message
    contains.
    """

    part: Part | None = None
    arguments: Arguments = NO_ARGUMENTS
    """Names of the call's serde arguments, if the part is unknown."""
    argument: str | None = None
    """Name of the argument that contains the serde, if it differs from the part."""
    is_of_function: bool = False
    """Whether the cause is an error of a user's function."""

    def named_by(self, arguments: Arguments) -> None:
        """Set the names of the call's serde arguments, unless they are already set."""
        if self.part is None:
            self.arguments = arguments
        elif self.argument is None:
            self.argument = arguments.get(self.part)

    def __str__(self) -> str:
        text = super().__str__()
        if self.part or self.argument:
            text = _EITHER.sub(rf"{self.argument or self.part}=\1", text)
        elif self.arguments:
            value, key = (self.arguments.get(part, part) for part in ("value", "key"))
            either = rf"{value}=\1" + ("" if key == value else rf" ({key}=\2 for keys)")
            text = _EITHER.sub(either, text)
        if self.part is None:
            return text
        if self.part == "key":
            text = text.replace(" a value of type ", " a key of type ", 1)
        return f"the {self.part}'s {text}" if text.startswith("serde ") else f"{self.part}: {text}"


@contextmanager
def about(part: Part) -> Iterator[None]:
    """Set the part of a record, key or value, of a serde's error.

    Args:
        part: the part that is read or written.
    """
    try:
        yield
    except SerdeError as error:
        error.part = part
        raise


class FarTimeWarning(UserWarning):
    """A test wrote a record with a timestamp after the year 9999; brokers reject it by default."""


class KeySerdeWarning(UserWarning):
    """Keys are written with the default serde, or may be encoded differently than the keys they are
    joined with.

    The test driver emits this warning in both cases; set the serde, or use the same object on both
    sides.
    """


class RegistryError(Exception):
    """The schema registry does not answer or rejects the request; the record is not the cause.

    Correct the cause in the message and restart; no record is skipped because of it.
    """


class SchemaRefusedError(RegistryError):
    """A schema is not compatible with the versions of its subject; change the schema."""


class SchemaUnknownError(RegistryError):
    """The registry does not have the schema; register it, or use another registry."""


LAST_TIME_MS = 2**62
"""Largest legal timestamp of a record, so that the end of the longest window is below 2**63."""


class BadRecordError(Exception):
    """Base class of errors that generated code raises for a record that it cannot process.

    The task catches it like an error of a user function, and adds the record's topic, partition and
    offset.
    """


class EarlierRecordError(BadRecordError):
    """A user function failed on an earlier record, which the current record has read or released.

    Args:
        error: the error that the function raised.
        timestamp: timestamp of the earlier record, in milliseconds since 1970.
    """

    def __init__(self, error: Exception, timestamp: int) -> None:
        super().__init__(error, timestamp)
        self.error = self.__cause__ = error
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"a user function raised {type(self.error).__name__} on an earlier record (timestamp "
            f"{self.timestamp}), which the current record has read or released"
        )


class NullKeyError(BadRecordError):
    """A record without a key reached an operator that requires a key.

    Args:
        node: the operator.
        store: the operator's store, or None.
    """

    def __init__(self, node: str, store: str | None) -> None:
        super().__init__(node, store)
        self.node = node
        self.store = store

    def __str__(self) -> str:
        rows = f", because the rows of store {self.store!r} have keys" if self.store else ""
        return (
            f"the key is null, and {self.node!r} requires a key{rows}; filter such records out "
            "upstream, or set null.key.policy to 'drop'"
        )


class BufferFullError(BadRecordError):
    """A suppression buffers more than its limit, and its policy is to stop.

    Args:
        node: the suppression.
        store: its buffer.
        records: number of buffered rows.
        size: number of buffered bytes, or 0 if they are not counted.
    """

    def __init__(self, node: str, store: str, records: int, size: int) -> None:
        super().__init__(node, store, records, size)
        self.node = node
        self.store = store
        self.records = records
        self.size = size

    def __str__(self) -> str:
        size = f" and {self.size} bytes" if self.size else ""
        return (
            f"{self.node!r} buffers {self.records} rows{size} in store {self.store!r}, which is "
            "more than its BufferConfig allows"
        )


class MisuseError(BadRecordError):
    """A processor made an invalid call to its context or a store; the message describes only the
    call.

    The raised error is also a `TypeError`, `ValueError` or `RuntimeError`.
    """


class MisuseTypeError(MisuseError, TypeError):
    """An argument has an invalid type."""


class MisuseValueError(MisuseError, ValueError):
    """An argument has an invalid value."""


class MisuseTimeError(MisuseError, RuntimeError):
    """A method was called at an invalid time."""


class NegativeTimestampError(BadRecordError):
    """A record has a timestamp before 1970, or none; Kafka Streams rejects it, too.

    Args:
        timestamp: milliseconds since 1970.
    """

    def __init__(self, timestamp: int) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"the timestamp {self.timestamp} is negative; for existing records give the source "
            "timestamps=, or set default.timestamp.extractor; for new records have the producer "
            "set a timestamp, or set the topic's message.timestamp.type to LogAppendTime"
        )


def type_of(returned: object) -> str:
    """Return the type of an object with its article, without its content.

    Examples:
        >>> type_of(1), type_of("a"), type_of(None)
        ('an int', 'a str', 'None')
    """
    if returned is None:
        return "None"
    name = type(returned).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def require_timedelta(name: str, value: object) -> None:
    """Raise TypeError if an argument is not a timedelta.

    Examples:
        >>> require_timedelta("timeout", 10)
        Traceback (most recent call last):
            ...
        TypeError: timeout must be a timedelta, not an int. Write timedelta(seconds=10)
    """
    if not isinstance(value, timedelta):
        number = value if type(value) in (int, float) else 5
        raise TypeError(
            f"{name} must be a timedelta, not {type_of(value)}. Write timedelta(seconds={number})"
        )


class ReturnedError(BadRecordError):
    """A user function returned an invalid value.

    Args:
        returned: description of the value, without its content.
    """

    text: ClassVar[str]
    """Message, with the description in place of ``{}``."""

    def __init__(self, returned: str) -> None:
        super().__init__(returned)
        self.returned = returned

    def __str__(self) -> str:
        return self.text.format(self.returned)


class NoPairError(ReturnedError):
    """A function that must return a key and a value returned something else."""

    text = (
        "the function returned {} instead of a key and a value; return a tuple or list of two: "
        "(key, value)"
    )


class NoResultsError(ReturnedError):
    """A function that must return an iterable of results returned something else."""

    text = (
        "the function returned {} instead of an iterable of results; return a list, which may be "
        "empty, or yield the results"
    )


class NoValuesError(ReturnedError):
    """A batch function returned an object that does not contain a value for each record."""

    text = (
        "the function returned {} instead of a value for each record of the batch; return the "
        "values in the order of the records, as a list, a frame or a column"
    )


class WrongLengthError(ReturnedError):
    """A batch function returned more or fewer values than the batch has records.

    Args:
        values: number of values that it returned.
        records: number of records in the batch.
    """

    def __init__(self, values: int, records: int) -> None:
        super().__init__(f"{values} values")
        self.args = (values, records)
        self.records = records

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} for a batch of {self.records} records that "
            "begins with this record; return a value for each record, in their order, or None"
        )


class NeverRunError(ReturnedError):
    """A function returned a coroutine or a generator that is never awaited or iterated."""

    text = (
        "the function returned a {}, which would never run; return its result, such as that of "
        "asyncio.run(...)"
    )


class NoTimestampError(ReturnedError):
    """A timestamp extractor returned an object that is not a timestamp."""

    text = (
        "a timestamp extractor returned {}; it must return an int of milliseconds since 1970, or a "
        "datetime with a time zone"
    )


class InvalidTimeError(BadRecordError):
    """The payload of a record has no valid event time.

    Args:
        source: the part of the record that the time is read from.
        what: description of that part, without its content.
        answer: reaction to the record that overrides the handlers.
    """

    def __init__(
        self, source: str, what: str, answer: Literal["skip", "dead_letter"] | None = None
    ) -> None:
        super().__init__(source, what, answer)
        self.source = source
        self.what = what
        self.answer = answer

    def __str__(self) -> str:
        return (
            f"no valid event time in {self.source}: {self.what}; correct the producer, or choose "
            "on_invalid= of event_time()"
        )


class NoPartitionError(ReturnedError):
    """A partitioner returned an object that is not a partition of the topic.

    Args:
        returned: the number, or a description of another object without its content.
        topic: the output topic.
        partitions: number of its partitions.
    """

    def __init__(self, returned: str, topic: str, partitions: int) -> None:
        super().__init__(returned)
        self.args = (returned, topic, partitions)
        self.topic = topic
        self.partitions = partitions

    def __str__(self) -> str:
        last = self.partitions - 1
        has = "1 partition (0)" if last == 0 else f"{last + 1} partitions (0 to {last})"
        return (
            f"the partitioner returned {self.returned}, and {self.topic} has {has}; return a "
            "partition as an int, several in a list, an empty list to write nowhere, or None for "
            "the partition of the key"
        )


class NoReasonError(ReturnedError):
    """A function that must return the reason of a dead letter returned something else."""

    text = "the function returned {} instead of the reason of a dead letter; return a str"


class DeadLetterRequested(Exception):  # noqa: N818 - its name is the letter's
    """A node sends the record to the dead-letter topic; the message is the reason."""


class NoTopicError(ReturnedError):
    """A function that must return the name of the output topic returned something else."""

    text = (
        "the function returned {} instead of the name of a topic; return a str of at most 249 "
        "letters, digits, '.', '_' and '-'"
    )


class FutureTimestampError(BadRecordError):
    """A record has a timestamp that is too large for window arithmetic.

    Args:
        timestamp: milliseconds since 1970.
    """

    def __init__(self, timestamp: int) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"the timestamp {self.timestamp} is larger than {LAST_TIME_MS}, so the end of a window "
            "could overflow; have the producer set milliseconds since 1970, or give the source "
            "timestamps="
        )


class RefusedTimestampError(BadRecordError):
    """An output record has a timestamp that its topic does not accept.

    Args:
        topic: the topic.
        timestamp: milliseconds since 1970.
        reason: the topic's limit that it exceeds, and the fix.
    """

    def __init__(self, topic: str, timestamp: int, reason: str) -> None:
        super().__init__(topic, timestamp, reason)
        self.topic = topic
        self.timestamp = timestamp
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class UnknownTimeError(NegativeTimestampError):
    """A record has a negative timestamp, and no earlier record of its partition has a valid
    timestamp.
    """

    def __str__(self) -> str:
        return f"{super().__str__()}; its partition has no earlier record with a valid timestamp"


class PartialError(BadRecordError):
    """A repartition topic contains a partial aggregate that its reader cannot process.

    Args:
        call: the aggregation that wrote it.
    """

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call

    def __str__(self) -> str:
        return (
            f"the record is a partial aggregate of {self.call!r}, but no such call reads it, or "
            "it is damaged; run the version that wrote it, with topology.optimization=none, until "
            "the repartition topic is read to its end"
        )


class CallError(BadRecordError):
    """An external call ended without a result or an error of its function."""


class CallTimeoutError(CallError, TimeoutError):
    """An external call took too long.

    Args:
        timeout_ms: the timeout.
        attempts: number of attempts.
    """

    def __init__(self, timeout_ms: int, attempts: int) -> None:
        super().__init__(timeout_ms, attempts)
        self.timeout_ms = timeout_ms
        self.attempts = attempts

    def __str__(self) -> str:
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return (
            f"the call took longer than {self.timeout_ms / 1000:g} s ({times}); give the operator "
            "a longer timeout=, or the function a shorter timeout, or handle the record with "
            "on_error="
        )


class CallCancelledError(CallError):
    """An external call was cancelled, by the function or because the worker stopped."""

    def __str__(self) -> str:
        return "the call was cancelled, by the function itself or because the worker stopped"


class CallsStuckError(CallError):
    """Too many timed-out calls are still running in threads, so no new call is started.

    Args:
        stuck: their number.
    """

    def __init__(self, stuck: int) -> None:
        super().__init__(stuck)
        self.stuck = stuck

    def __str__(self) -> str:
        return (
            f"{self.stuck} calls that took longer than their timeout= still run in their threads, "
            "because a plain function cannot be interrupted; give the function a timeout, or make "
            "it a coroutine function"
        )
