"""Exception handlers for records that cannot be processed, and the dead-letter topic.

Each of the settings ``deserialization.exception.handler``, ``processing.exception.handler`` and
``production.exception.handler`` is "fail", "continue", or a function that gets a `Failure` and
returns `Fail`, `Continue`, "fail" or "continue". See docs/errors.md.

Examples:
    >>> def handler(failure: Failure) -> Answer:
    ...     if isinstance(failure.error, ZeroDivisionError):
    ...         return Continue((failure.dead_letter("divisions"),))
    ...     return "fail"
    >>> failure = Failure(ZeroDivisionError("division by zero"), stage="processing", node="divide",
    ...     task_id="0_1", topic="numbers", partition=1, offset=7, timestamp=5, value=b"0")
    >>> [letter.topic for letter in handler(failure).dead_letters]
    ['divisions']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.streams.config.dead_letter_headers import error_headers
from headrace.streams.config.settings import Kind
from headrace.topology.arguments import why_not_called_as
from headrace.topology.context.context import is_header_name
from headrace.topology.context.environment import Headers, Part
from headrace.topology.errors import type_of
from headrace.topology.functions import SourceLocation, location_of
from headrace.topology.naming import is_legal_topic

Stage = Literal["deserialization", "processing", "production"]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Input record of a node; parts that are not deserialized are bytes."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Record to write in place of a failed record, in the same Kafka transaction.

    External sinks have a separate transaction: the letter of a record on its way to a sink is
    committed before the sink's position passes the record, so that a kill may repeat the letter.

    Args:
        topic: output topic.
        key: the key's bytes.
        value: the value's bytes.
        timestamp: milliseconds since 1970.
        headers: in order.
    """

    topic: str
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    timestamp: int = 0
    headers: Headers = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Continue:
    """Answer of a handler: skip the record and continue.

    Args:
        dead_letters: records to write in its place.
    """

    dead_letters: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer of a handler: stop the application; nothing at or after the record is committed."""


Answer = Continue | Fail | Literal["continue", "fail"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a record, with its origin.

    The input record is unknown during a cache flush and in a punctuator: then `topic`, `partition`,
    `offset` and the record's bytes are None.

    Args:
        error: the raised error.
        stage: the failed stage.
        node: the node that failed.
        task_id: the task, as ``<sub-topology>_<partition>``.
        topic: the input topic.
        partition: the input partition.
        offset: the input record's offset; None in a backfill for a row of an archive without
            offsets.
        timestamp: the input record's timestamp in milliseconds since 1970.
        headers: the input record's headers.
        key: the input record's key, serialized.
        value: the input record's value, serialized.
        record: the node's input; None if it could not be deserialized.
        part: the part of the record that could not be written: key, value, or the whole "record".

    Examples:
        >>> from headrace import Continue, DeadLetter, Fail
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> def keep_bad_prices(failure: Failure) -> Continue | Fail:
        ...     if not isinstance(failure.error, ValueError):
        ...         return Fail()
        ...     letter = DeadLetter("bad-prices", failure.key, failure.value)
        ...     return Continue((letter,))
        >>> builder = StreamsBuilder()
        >>> prices = builder.stream("prices", key=serdes.string, value=serdes.string)
        >>> prices.map_values(int).to("numbers", value=serdes.long)
        >>> settings = {"processing.exception.handler": keep_bad_prices}
        >>> with TopologyTestDriver(builder.build(), settings) as driver:
        ...     driver.input("prices").send_many([("tea", "3"), ("cup", "five")])
        ...     driver.output("bad-prices", key=serdes.string, value=serdes.string).as_dict()
        {'cup': 'five'}
    """

    error: Exception
    stage: Stage = field(kw_only=True)
    node: str = field(kw_only=True)
    task_id: str = field(kw_only=True)
    topic: str | None = field(default=None, kw_only=True)
    partition: int | None = field(default=None, kw_only=True)
    offset: int | None = field(default=None, kw_only=True)
    timestamp: int | None = field(default=None, kw_only=True)
    headers: Headers = field(default=(), kw_only=True, repr=False)
    key: bytes | None = field(default=None, kw_only=True, repr=False)
    value: bytes | None = field(default=None, kw_only=True, repr=False)
    record: NodeRecord | None = field(default=None, kw_only=True, repr=False)
    part: Part | None = field(default=None, kw_only=True)

    def dead_letter(self, topic: str) -> DeadLetter:
        """Return the record that Kafka Streams writes to a dead-letter topic (KIP-1034).

        It has the bytes and headers of the input record, and headers with the class and text of the
        error that a user function raised, its stack trace, topic, partition and offset of the input
        record, and the node, which Kafka Streams does not write. Long texts are truncated, with the
        number of omitted bytes.

        Args:
            topic: the dead-letter topic.

        Examples:
            >>> failure = Failure(KeyError("k"), stage="processing", node="n", task_id="0_0",
            ...     topic="in", partition=0, offset=3, timestamp=5, key=b"k", headers=[("h", b"1")])
            >>> letter = failure.dead_letter("dead")
            >>> letter.key, letter.timestamp
            (b'k', 5)
            >>> [name for name, _ in letter.headers]  # doctest: +NORMALIZE_WHITESPACE
            ['h', '__streams.errors.exception', '__streams.errors.message',
             '__streams.errors.topic', '__streams.errors.partition', '__streams.errors.offset',
             'headrace.errors.node']
        """
        origin = {"topic": self.topic, "partition": self.partition, "offset": self.offset}
        timestamp = self.timestamp
        if timestamp is None:
            timestamp = self.record.timestamp if self.record is not None else 0
        every = (*(self.headers or ()), *error_headers(self.error, origin, self.node))
        return DeadLetter(topic, self.key, self.value, max(timestamp, 0), every)


Handler = Literal["fail", "continue"] | Callable[[Failure], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Exception handlers of an application.

    Args:
        deserialization: for bytes that a source cannot deserialize.
        processing: for records that a node fails on.
        production: for records that a sink cannot write.
        dead_letter_topic: topic to which "continue" writes skipped records.
    """

    deserialization: Handler = "fail"
    processing: Handler = "fail"
    production: Handler = "fail"
    dead_letter_topic: str | None = None

    def of(self, stage: Stage) -> Handler:
        """Return the handler of a stage."""
        handler: Handler = getattr(self, stage)
        return handler

    def answer(self, failure: Failure) -> Continue | Fail:
        """Call the handler.

        Raises:
            HandlerFailedError: it raises, or returns an invalid answer.
        """
        handler = self.of(failure.stage)
        if handler == "fail":
            return Fail()
        if handler == "continue":
            return self.skip(failure, dead_letter=True)
        assert callable(handler)
        try:
            answer = handler(failure)
        except (Exception, SystemExit) as error:
            raise self.failed(failure, f"raised {type(error).__name__}") from error
        if answer == "continue":
            return Continue()
        if answer == "fail":
            return Fail()
        wrong = _wrong_answer(answer)
        if wrong is not None:
            raise self.failed(failure, f"returned {wrong}", _ANSWERS)
        right: Continue | Fail = answer
        return right

    def skip(self, failure: Failure, *, dead_letter: bool) -> Continue:
        """Skip a record, with a dead letter if requested and a topic is set."""
        topic = self.dead_letter_topic if dead_letter else None
        return Continue(() if topic is None else (failure.dead_letter(topic),))

    def failed(self, failure: Failure, did: str, advice: str = "") -> HandlerFailedError:
        """Return the error to raise for a failed handler."""
        return HandlerFailedError(failure, did, advice, location_of(self.of(failure.stage)))


class HandlerFailedError(Exception):
    """Handler that raised or returned an invalid answer; becomes a `RecordError`.

    Args:
        failure: the failure passed to it.
        did: its error, without arguments and results.
        advice: advice for the message.
        location: location of the handler.
    """

    def __init__(
        self, failure: Failure, did: str, advice: str, location: SourceLocation | None
    ) -> None:
        what = f"the {failure.stage}.exception.handler {did}"
        then = advice and f"; {advice}"
        super().__init__(f"{what} for {type(failure.error).__name__}{then}")
        self.locations = () if location is None else (location,)


_ANSWERS = (
    "return Continue(), Continue((failure.dead_letter(\"some-topic\"),)), Fail(), 'continue' or "
    "'fail'"
)


def _wrong_answer(answer: object) -> str | None:
    """Describe an invalid answer without its content; None if it is valid."""
    if isinstance(answer, Fail):
        return None
    if isinstance(answer, Continue):
        wrong = _wrong_letters(answer.dead_letters)
        return None if wrong is None else f"Continue with {wrong}"
    if isinstance(answer, str):
        return "a str that is neither 'continue' nor 'fail'"
    if isinstance(answer, DeadLetter):
        return "a DeadLetter outside of Continue"
    if answer in (Continue, Fail):
        return f"the class {answer.__name__}"
    return type_of(answer)


def _wrong_letters(letters: object) -> str | None:
    if not isinstance(letters, (tuple, list)):
        return f"{type_of(letters)} for its dead letters"
    for letter in letters:
        if not isinstance(letter, DeadLetter):
            return f"{type_of(letter)} among its dead letters"
        wrong = _wrong_part(letter)
        if wrong is not None:
            return f"a dead letter whose {wrong}"
    return None


def _wrong_part(letter: DeadLetter) -> str | None:
    for name, part in (("key", letter.key), ("value", letter.value)):
        if part is not None and not isinstance(part, bytes):
            return f"{name} is {type_of(part)}, not bytes or None"
    topic, timestamp, headers = letter.topic, letter.timestamp, letter.headers
    if not isinstance(topic, str) or not topic:
        is_ = "empty" if topic == "" else type_of(topic)
        return f"topic is {is_}, not the name of a topic"
    if not is_legal_topic(topic):
        return "topic is not a legal name"
    if type(timestamp) is not int or not 0 <= timestamp < 2**63:
        is_ = "out of range" if type(timestamp) is int else type_of(timestamp)
        return f"timestamp is {is_}, not milliseconds since 1970"
    if not isinstance(headers, (tuple, list)) or not all(map(_is_header, headers)):
        return "headers are not a list of (str, bytes) tuples with names in UTF-8"
    return None


def _is_header(pair: object) -> bool:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return False
    return is_header_name(pair[0]) and (pair[1] is None or isinstance(pair[1], bytes))


def handler() -> Kind:
    def parse(value: object) -> object:
        if isinstance(value, str) and value in ("fail", "continue"):
            return value
        if not callable(value):
            raise ValueError(f"must be 'fail', 'continue' or a function, not {value!r}")
        wrong = _why_not_asked(value)
        if wrong is not None:
            raise ValueError(wrong)
        return value

    return Kind("`fail`, `continue`, or a function", parse)


def _why_not_asked(given: Callable[..., Any]) -> str | None:
    if given is Continue or given is Fail:
        word = "continue" if given is Continue else "fail"
        return f"must not be the class {given.__name__}; write {word!r}"
    if type(given) is type and not issubclass(given, (Continue, Fail, str)):
        name = given.__name__
        return f"must be an object, not the class {name}; write {name}()"
    return why_not_called_as("handler(failure)", 1, given)
