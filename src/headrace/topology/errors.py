"""The errors of the topology package: one class per reaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Literal

_EITHER = re.compile(r"value=(\S.*?) \(key=(.*?) for keys\)")
"""What serdes say where they cannot know which of both is meant."""


class TopologyError(Exception):
    """The topology as written cannot run; change the code that builds it.

    Raised while the topology is built, before anything is read.
    """


Part = Literal["key", "value"]
Arguments = Mapping[Part, str]
"""What the arguments of a step are called that name its serdes, where not as the part."""
NO_ARGUMENTS: Arguments = MappingProxyType({})


class SerdeError(Exception):
    """A key or value cannot be encoded or decoded; pass another serde or correct the data.

    The message names the serde and the type it was given, never the payload. A serde does not know
    what it is used for; who does sets `part`, and the message says it.
    """

    part: Part | None = None
    arguments: Arguments = NO_ARGUMENTS
    """Those of the step, where nobody knows which part it is about."""
    argument: str | None = None
    """The argument of the step that names the serde, where it is not called as the part."""
    is_of_function: bool = False
    """Whether it only reports that a user's function has raised its cause."""

    def named_by(self, arguments: Arguments) -> None:
        """Say what the arguments of the step are called, unless that is known."""
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
    """Say of a serde's error which part of a record it is about.

    Args:
        part: what is being read or written.
    """
    try:
        yield
    except SerdeError as error:
        error.part = part
        raise


class FarTimeWarning(UserWarning):
    """A test wrote a record with a time after the year 9999, which brokers refuse by default."""


class KeySerdeWarning(UserWarning):
    """Keys are written with a serde that nobody named, or may be other bytes than those they meet.

    The test driver warns of both; name the serde, or use the same object on both sides.
    """


class RegistryError(Exception):
    """The schema registry does not answer, or refuses; nothing is wrong with the record.

    Correct what the message names and start again; no record is skipped for it.
    """


class SchemaRefusedError(RegistryError):
    """A schema is not compatible with the versions of its subject; change the schema."""


class SchemaUnknownError(RegistryError):
    """The registry does not have a schema; register it, or ask another registry."""


LAST_TIME_MS = 2**62
"""The largest timestamp of a record. It leaves room below 2**63 for the longest of windows."""


class BadRecordError(Exception):
    """Base of what generated code raises for a record that it cannot process.

    The task catches it, as it catches what user functions raise, and adds the record's place.
    """


class EarlierRecordError(BadRecordError):
    """A user function failed on an earlier record, which the present one has read or released.

    Args:
        error: what the function raised.
        timestamp: of the earlier record, in milliseconds since 1970.
    """

    def __init__(self, error: Exception, timestamp: int) -> None:
        super().__init__(error, timestamp)
        self.error = self.__cause__ = error
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"a user function raised {type(self.error).__name__} on an earlier record (timestamp "
            f"{self.timestamp}), which the record named here only read or released"
        )


class NullKeyError(BadRecordError):
    """A record without a key reached a step that needs one.

    Args:
        node: the step that needs the key.
        store: the store whose rows have keys, if the step has one.
    """

    def __init__(self, node: str, store: str | None) -> None:
        super().__init__(node, store)
        self.node = node
        self.store = store

    def __str__(self) -> str:
        rows = f", as the rows of store {self.store!r} have keys" if self.store else ""
        return (
            f"the key is null where {self.node!r} needs one{rows}; filter such records out before "
            "it, or set null.key.policy to 'drop'"
        )


class BufferFullError(BadRecordError):
    """A suppression holds back more than it may, and was told to stop then.

    Args:
        node: the suppression.
        store: its buffer.
        records: how many rows it holds.
        size: how many bytes it holds, or 0 where they are not counted.
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
            f"{self.node!r} holds back {self.records} rows{size} in store {self.store!r}, which is "
            "more than its BufferConfig allows"
        )


class MisuseError(BadRecordError):
    """A processor asked of its context or a store what cannot be; the text says what, and no more.

    What is raised is a `TypeError`, `ValueError` or `RuntimeError` as well.
    """


class MisuseTypeError(MisuseError, TypeError):
    """It was given something of another type."""


class MisuseValueError(MisuseError, ValueError):
    """It was given something that it does not take."""


class MisuseTimeError(MisuseError, RuntimeError):
    """It was called when it cannot be."""


class NegativeTimestampError(BadRecordError):
    """A record has a timestamp before 1970, or none; Kafka Streams refuses it too.

    Args:
        timestamp: milliseconds since 1970.
    """

    def __init__(self, timestamp: int) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"the timestamp {self.timestamp} is negative; for records that are there, give the "
            "source timestamps=, or set default.timestamp.extractor; for those to come have the "
            "producer set one, or set the topic's message.timestamp.type to LogAppendTime"
        )


def type_of(returned: object) -> str:
    """Say what something is, without its content.

    >>> type_of(1), type_of("a"), type_of(None)
    ('an int', 'a str', 'None')
    """
    if returned is None:
        return "None"
    name = type(returned).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class ReturnedError(BadRecordError):
    """A function returned what it must not.

    Args:
        returned: what it was, without its content.
    """

    def __init__(self, returned: str) -> None:
        super().__init__(returned)
        self.returned = returned


class NoPairError(ReturnedError):
    """A function that makes a key and a value returned something else.

    Args:
        returned: what it was, without its content.
    """

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} where a key and a value belong; return a tuple "
            "or list of two: (key, value)"
        )


class NoResultsError(ReturnedError):
    """A function that makes any number of results returned what has none in it.

    Args:
        returned: what it was, without its content.
    """

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} where any number of results belong; return a "
            "list of them, an empty one for none, or yield them"
        )


class NoValuesError(ReturnedError):
    """A function that is given a batch returned what has no value for each record in it.

    Args:
        returned: what it was, without its content.
    """

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} where a value for each record of the batch "
            "belongs; return a list of them, in their order, or a frame or a column of such"
        )


class WrongLengthError(ReturnedError):
    """A function that is given a batch returned more values than it has records, or fewer.

    Args:
        values: how many it returned.
        records: how many it was given.
    """

    def __init__(self, values: int, records: int) -> None:
        super().__init__(f"{values} values")
        self.args = (values, records)
        self.records = records

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} for a batch of {self.records} records, of "
            "which this one is the first; return one for each, in their order, and None where "
            "there is nothing to say"
        )


class NeverRunError(ReturnedError):
    """A function returned a coroutine or a generator where nobody awaits or asks it.

    Args:
        returned: what it was.
    """

    def __str__(self) -> str:
        return (
            f"the function returned a {self.returned}, which would never run; return what it "
            "gives, such as by asyncio.run(...)"
        )


class NoTimestampError(ReturnedError):
    """A timestamp extractor returned what is no time.

    Args:
        returned: what it was, without its content.
    """

    def __str__(self) -> str:
        return (
            f"a timestamp extractor returned {self.returned}; it must return an int of "
            "milliseconds since 1970, or a datetime with a time zone"
        )


class InvalidTimeError(BadRecordError):
    """The payload of a record has no valid event time.

    Args:
        source: what of the record the time is read from.
        what: what is there, without its content.
        answer: what is done with the record, whatever the handlers would do.
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
    """A partitioner returned what is no partition of the topic.

    Args:
        returned: what it was: a number, or else without its content.
        topic: the topic that is written to.
        partitions: how many partitions it has.
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
            f"the partitioner returned {self.returned}, and {self.topic} has {has}; return one of "
            "them as an int, several in a list, an empty list to write nowhere, or None for the "
            "partition of the key"
        )


class NoReasonError(ReturnedError):
    """A function that gives the reason of a dead letter returned something else.

    Args:
        returned: what it was, without its content.
    """

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} where the reason of a dead letter belongs; "
            "return a str"
        )


class DeadLetterRequested(Exception):  # noqa: N818 - its name is the letter's
    """A step sends the record to the dead letters; the text is its reason."""


class NoTopicError(ReturnedError):
    """A function that names the topic of a record returned something else than a name.

    Args:
        returned: what it was, without its content.
    """

    def __str__(self) -> str:
        return (
            f"the function returned {self.returned} where a topic's name belongs; return a str of "
            "at most 249 letters, digits, '.', '_' and '-'"
        )


class FutureTimestampError(BadRecordError):
    """A record has a timestamp that is too large for windows to reckon with.

    Args:
        timestamp: milliseconds since 1970.
    """

    def __init__(self, timestamp: int) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"the timestamp {self.timestamp} is larger than {LAST_TIME_MS}, so that the end of a "
            "window may be none; it is milliseconds since 1970: have the producer set such a one, "
            "or give the source timestamps="
        )


class RefusedTimestampError(BadRecordError):
    """A record is to be written with a timestamp that its topic does not accept.

    Args:
        topic: the topic.
        timestamp: milliseconds since 1970.
        reason: which limit of the topic it exceeds, and what to do.
    """

    def __init__(self, topic: str, timestamp: int, reason: str) -> None:
        super().__init__(topic, timestamp, reason)
        self.topic = topic
        self.timestamp = timestamp
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class UnknownTimeError(NegativeTimestampError):
    """A record has a negative timestamp, and no record before it in its partition has another."""

    def __str__(self) -> str:
        return f"{super().__str__()}; no record before it tells the time of its partition"


class PartialError(BadRecordError):
    """A repartition topic has a partial result that whoever reads it cannot take.

    Args:
        call: what it is a partial result of.
    """

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call

    def __str__(self) -> str:
        return (
            f"the record is a partial result of {self.call!r}, and no such call reads it, or it is "
            "damaged; run the version that wrote it, with topology.optimization=none, until the "
            "repartition topic is read to its end"
        )


class CallError(BadRecordError):
    """A call to the outside has come to no end of its own."""


class CallTimeoutError(CallError, TimeoutError):
    """A call to the outside took too long.

    Args:
        timeout_ms: how long it might take.
        attempts: how many there were.
    """

    def __init__(self, timeout_ms: int, attempts: int) -> None:
        super().__init__(timeout_ms, attempts)
        self.timeout_ms = timeout_ms
        self.attempts = attempts

    def __str__(self) -> str:
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return (
            f"the call took longer than {self.timeout_ms / 1000:g} s ({times}); give the step a "
            "longer timeout=, the function a shorter one of its own, or let on_error= say what "
            "then becomes of the record"
        )


class CallCancelledError(CallError):
    """A call to the outside was cancelled: by itself, or as the worker ended."""

    def __str__(self) -> str:
        return "the call was cancelled, by the function itself or as the worker ended"


class CallsStuckError(CallError):
    """So many calls that took too long still run that no further one is begun.

    Args:
        stuck: how many.
    """

    def __init__(self, stuck: int) -> None:
        super().__init__(stuck)
        self.stuck = stuck

    def __str__(self) -> str:
        return (
            f"{self.stuck} calls that took longer than their timeout= still run in their threads, "
            "as a plain function cannot be interrupted; give it a time-out of its own, or make it "
            "a coroutine function"
        )
