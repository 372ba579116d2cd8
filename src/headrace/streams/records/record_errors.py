"""Asks the handlers about the records of one task that fail (see
`headrace.streams.records.handlers`).

Only errors about a record are asked about: those of the clients, of local state and of a schema
registry have reactions of their own, and letting a record go would not put them right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from headrace.state.errors import StateError
from headrace.streams.errors import StreamsError
from headrace.streams.records.failures import is_ours
from headrace.streams.records.handlers import (
    Continue,
    DeadLetter,
    Failure,
    HandlerFailedError,
    Handlers,
    NodeRecord,
    Stage,
)
from headrace.streams.records.letter_headers import fitted, letter_size, user_error
from headrace.streams.seams.clients import Log
from headrace.streams.worker_errors import LetterTooLargeError, RecordTooLargeError
from headrace.topology.compile.compiler import Program
from headrace.topology.context.environment import Answered, Headers, Part, Send
from headrace.topology.context.task_facts import TaskFacts
from headrace.topology.errors import (
    BufferFullError,
    DeadLetterRequested,
    EarlierRecordError,
    InvalidTimeError,
    RefusedTimestampError,
    RegistryError,
    SerdeError,
)
from headrace.topology.external_sink import SinkRow

_REASONS: dict[Stage, str] = {
    "deserialization": "it cannot be decoded",
    "processing": "the node failed",
    "production": "it cannot be written",
}
_ASKED_FOR = "sent to the dead letters"
_INVALID_TIME = "invalid event time"


@dataclass(frozen=True, slots=True)
class RecordErrors:
    """See the module.

    Args:
        send: writes dead letters, in the task's transaction.
        dropped: counts what is let go, by node and reason.
        refuse: raises what stops the application, given the error, the node and the message.
        facts: what the task's processors share: whether one of their punctuators runs now.
        record_limit: returns the bytes of the largest record that a topic takes, if known.
    """

    handlers: Handlers
    program: Program
    task_id: str
    send: Send
    dropped: Callable[[str, str], None]
    refuse: Callable[[BaseException, str, Any], NoReturn]
    facts: TaskFacts
    record_limit: Callable[[str], int | None] = lambda _: None
    log: Log | None = None
    _seen: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """How many records were let go, by node, stage and class of the error."""

    def undecodable(self, node: str, error: Exception, message: Any) -> None:
        """Decide about a message that a source cannot decode, or whose time it cannot tell."""
        error = self.program.explain(error, node, message)
        answer = error.answer if isinstance(error, InvalidTimeError) else None
        self._decide(error, "deserialization", node, message, answer=answer)

    def failed(
        self,
        node: str,
        error: Exception,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers | None,
        part: Part | None,
    ) -> None:
        """Decide about a record that a node fails on, or a sink cannot write."""
        stage: Stage = "processing" if part is None else "production"
        record = NodeRecord(key, value, timestamp, headers)
        if isinstance(error, SerdeError) and (part == "key" or part == "value"):
            error.part = part
        error = self.program.explain(error, node, None)
        is_earlier = isinstance(error, EarlierRecordError)
        message = None if is_earlier else self.program.current(sys._getframe(1))
        self._decide(error, stage, node, message, record, part)

    def let_go(
        self,
        node: str,
        error: Exception,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers | None,
        answer: Answered,
    ) -> None:
        """Let go of a record that a node fails on, as the node's step says itself."""
        record = NodeRecord(key, value, timestamp, headers)
        error = self.program.explain(error, node, None)
        message = self.program.current(sys._getframe(1))
        self._decide(error, "processing", node, message, record, answer=answer)

    def refused(self, node: str, error: Exception, message: Any, row: SinkRow) -> None:
        """Decide about a row that a table outside of Kafka refuses."""
        record = NodeRecord(row.key, row.value, row.timestamp, message.headers())
        self._decide(error, "production", node, message, record, "record")

    def punctuator_failed(self, node: str, error: BaseException) -> None:
        """Decide about a punctuator's call that failed; what it did until then stays."""
        if not isinstance(error, Exception):
            self.refuse(error, node, None)
        self._decide(error, "processing", node, None)

    def _decide(
        self,
        error: Exception,
        stage: Stage,
        node: str,
        message: Any,
        record: NodeRecord | None = None,
        part: Part | None = None,
        *,
        answer: Answered | None = None,
    ) -> None:
        cause = error.error if isinstance(error, EarlierRecordError) else error
        if not _is_about_a_record(cause):
            raise cause
        at_punctuation = {"timestamp": self.facts.timestamp}
        origin = at_punctuation if self.facts.is_punctuating else _origin(message)
        failure = Failure(
            cause,
            stage=stage,
            node=node,
            task_id=self.task_id,
            record=record,
            part=part,
            **origin,
        )
        answered = (
            self._answer(failure, message)
            if answer is None
            else self.handlers.letting_go(failure, dead_letter=answer == "dead_letter")
        )
        if not isinstance(answered, Continue):
            self.refuse(error, node, message)
        for letter in answered.dead_letters:
            self._send(letter, failure, message)
        self._note(failure, answered)

    def _answer(self, failure: Failure, message: Any) -> object:
        try:
            return self.handlers.answer(failure)
        except HandlerFailedError as error:
            self.refuse(error, failure.node, message)

    def _send(self, letter: DeadLetter, failure: Failure, message: Any) -> None:
        limit, headers = self.record_limit(letter.topic), letter.headers
        if limit is not None:
            headers = fitted(headers, limit - letter_size(letter.key, letter.value, ()))
        send = (letter.topic, letter.value, letter.key, -1, letter.timestamp)
        try:
            try:
                self.send(*send, list(headers) or None)
            except RefusedTimestampError:
                # It is a letter for its time: it is written at the present one.
                self.send(*send[:-1], self.facts.now_ms(), list(headers) or None)
        except RecordTooLargeError as error:
            size = letter_size(letter.key, letter.value, headers)
            too_large = LetterTooLargeError(letter.topic, size, error.limit)
            too_large.__cause__ = failure.error
            self.refuse(too_large, failure.node, message)

    def _note(self, failure: Failure, answer: Continue) -> None:
        reason = _REASONS[failure.stage]
        if isinstance(failure.error, DeadLetterRequested):
            reason = _ASKED_FOR
        elif isinstance(failure.error, InvalidTimeError):
            reason = _INVALID_TIME
        self.dropped(failure.node, reason)
        kind = failure.node, failure.stage, type(user_error(failure.error)).__name__
        count = self._seen[kind] = self._seen.get(kind, 0) + 1
        # Powers of two: seen at once, and never a flood.
        if self.log is not None and count & (count - 1) == 0:
            places = self.program.called(failure.error, failure.node, likely=False)
            self.log.warning(
                "record_skipped",
                task=self.task_id,
                topic=failure.topic,
                partition=failure.partition,
                offset=failure.offset,
                node=failure.node,
                function=str(places[0]) if places else None,
                stage=failure.stage,
                part=failure.part,
                error=kind[-1],
                reason=str(failure.error) if is_ours(failure.error) else None,
                dead_letters=len(answer.dead_letters),
                count=count,
            )


def _is_about_a_record(error: Exception) -> bool:
    if isinstance(error, RecordTooLargeError):
        return True
    no_record_s = (StreamsError, StateError, RegistryError, BufferFullError, MemoryError)
    return not isinstance(error, no_record_s)


def _origin(message: Any) -> dict[str, Any]:
    """The place and the bytes of an input record, as far as there is one."""
    if message is None:
        return {}
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "headers": tuple(message.headers() or ()),
        "key": message.key(),
        "value": message.value(),
    }
