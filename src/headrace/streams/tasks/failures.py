"""Reports of failures: of an application that stopped, and of single records of a task.

`FailureReport` describes the error that stopped an application: the reason, and the user's own
lines. `RecordErrors` asks the handlers about a failed record, sends its dead letter, and counts and
logs the skip.

The text of an error that is not raised by this package may quote a record. It is shown only in
interactive use, or if the setting `log.errors` allows it. Frames of this package and of libraries
do not help users and are omitted unless the traceback has no other frames.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from headrace.state.errors import StateError
from headrace.streams.config.dead_letter_headers import fitted, letter_size, user_error
from headrace.streams.config.handlers import (
    Continue,
    DeadLetter,
    HandlerFailedError,
    Handlers,
    NodeRecord,
    Stage,
)
from headrace.streams.config.handlers import (
    Failure as RecordFailure,
)
from headrace.streams.errors import LetterTooLargeError, RecordTooLargeError, StreamsError
from headrace.streams.kafka.protocols import Log
from headrace.streams.metrics.snapshots import moment
from headrace.topology.compile.compiler import Program
from headrace.topology.context.environment import FailureReaction, Headers, Part, Send
from headrace.topology.context.task_context import TaskContext
from headrace.topology.errors import (
    BadRecordError,
    BufferFullError,
    CallError,
    DeadLetterRequested,
    EarlierRecordError,
    InvalidTimeError,
    RefusedTimestampError,
    RegistryError,
    ReturnedError,
    SerdeError,
    TopologyError,
)
from headrace.topology.external_sink import SinkRefusedError, SinkRow

_OURS = (
    StreamsError,
    TopologyError,
    SerdeError,
    RegistryError,
    BadRecordError,
    SinkRefusedError,
    StateError,
)
_OWN = Path(__file__).parents[2]
"""Own package directory as it appears in frames, with symbolic links."""
_GENERATED = re.compile(r"<.* sub-topology \d+ \w+>|<frozen .*>|<string>")
_CAUSES_MAX = 4
_PLACES_MAX = 12
_TEXT_MAX = 800


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Error that stopped an application, small enough for a worker's report.

    Args:
        reason: its text, or the advice to set log.errors if the text may quote a record.
        cause: the type of its root cause, such as the error of a user function.
        places: file, line and function, outermost first.
        traceback: the user's lines and the texts of errors, as Python prints them.
    """

    error: str
    reason: str
    cause: str
    places: list[str] = field(default_factory=list)
    traceback: list[str] = field(default_factory=list)

    @property
    def kind(self) -> tuple[str, str, str]:
        """Identity of the failure: equal for workers that fail at the same place."""
        where = self.places[-1] if self.places else self.reason
        return self.error, self.cause, where


def describe_failure(error: BaseException, *, full: bool) -> FailureReport:
    """Describe an error; `full` includes texts that may quote a record."""
    chain = list(_chain(error))
    cause = chain[-1]
    is_shown = is_ours(error) or full
    name = type(error).__name__
    reason = str(error) if is_shown else f"{name}; set log.errors=full to have its text in the log"
    return FailureReport(
        error=name,
        reason=reason[: 2 * _TEXT_MAX],
        cause=type(cause).__name__,
        places=_places(chain),
        traceback=_lines(chain) if full else [],
    )


def log_failure(log: Log, failure: FailureReport, **fields: object) -> None:
    log.error("application_failed", error=failure.error, reason=failure.reason, **fields)
    if failure.places or failure.traceback:
        shown: dict[str, Any] = {"traceback": failure.traceback} if failure.traceback else {}
        log.error("failure_located", error=failure.cause, places=failure.places, **shown, **fields)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the root cause last."""
    seen: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if seen is None:
            return
        yield seen
        hidden = seen.__suppress_context__
        seen = seen.__cause__ or (None if hidden else seen.__context__)


def _places(chain: list[BaseException]) -> list[str]:
    """Return the user's frames of the root cause; all frames if an unexpected error has none."""
    for error in reversed(chain):
        functions = _called(chain) if isinstance(error, StreamsError) else []
        if functions:
            return functions[-_PLACES_MAX:]
        found = [f for f in traceback.extract_tb(error.__traceback__) if is_user_code(f.filename)]
        if found:
            return [f"{f.filename}:{f.lineno} {f.name}" for f in found][-_PLACES_MAX:]
    if isinstance(chain[0], _OURS):
        return []
    frames = traceback.extract_tb(chain[-1].__traceback__)
    return [f"{f.filename}:{f.lineno} {f.name}" for f in frames][-_PLACES_MAX:]


def _called(chain: list[BaseException]) -> list[str]:
    """Return the user functions of the failed node, if a call or its result has failed."""
    cause = chain[-1]
    if isinstance(cause, _OURS) and not isinstance(cause, (ReturnedError, CallError)):
        return []
    failed = next((error for error in chain if isinstance(error, StreamsError)), None)
    functions = () if failed is None else failed.functions
    node = getattr(failed, "node", None)
    return [
        f"{function.absolute} (called by {node})"
        for function in functions
        if function.file is not None and is_user_code(function.file)
    ]


def _lines(chain: list[BaseException]) -> list[str]:
    lines: list[str] = []
    for error in reversed(chain):
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in frames if is_user_code(frame.filename)]
        if isinstance(error, _OURS) and len(chain) > 1:
            continue  # the reason has its text
        for frame in users[-_PLACES_MAX:]:
            lines.append(f'File "{frame.filename}", line {frame.lineno}, in {frame.name}')
            source = linecache.getline(frame.filename, frame.lineno or 0).strip()
            lines += [f"  {source}"] if source else []
        if not isinstance(error, _OURS):
            text = "".join(traceback.format_exception_only(error)).strip()[:_TEXT_MAX]
            lines += text.splitlines()
    return lines


def is_ours(error: BaseException) -> bool:
    """Return whether this package wrote an error's text, which then quotes no record."""
    return isinstance(error, _OURS)


def is_log_worthy(count: int) -> bool:
    """Return whether to log the event with this number: early, without flooding the log."""
    return count & (count - 1) == 0


def is_user_code(filename: str) -> bool:
    if _GENERATED.fullmatch(filename):
        return False
    path = Path(filename)
    return not any(path.is_relative_to(place) for place in _library_paths())


def _library_paths() -> list[Path]:
    paths = sysconfig.get_paths()
    libraries = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [_OWN, *(Path(place) for place in libraries)]


# Failed records of a task: calls of exception handlers (see `headrace.streams.config.handlers`).
#
# Handlers are asked only about errors of a record. Errors of clients, of local state and of a
# schema registry have reactions of their own, because skipping a record would not fix them.


_REASONS: dict[Stage, str] = {
    "deserialization": "it cannot be decoded",
    "processing": "the node failed",
    "production": "it cannot be written",
}
_DEAD_LETTER_REQUESTED = "sent to the dead letters"
_INVALID_TIME = "invalid event time"


@dataclass(frozen=True, slots=True)
class RecordErrors:
    """Handlers' decisions about failed records of a task.

    Args:
        send: sends dead letters, in the task's transaction.
        dropped: counts skipped records, by node and reason.
        refuse: raises the error that stops the application, given error, node and message.
        current: returns the message that is being processed, or None.
        record_limit: returns the maximum record size of a topic in bytes, if known.
    """

    handlers: Handlers
    program: Program
    task_id: str
    send: Send
    dropped: Callable[[str, str], None]
    refuse: Callable[[BaseException, str, Any], NoReturn]
    current: Callable[[], Any]
    context: TaskContext
    record_limit: Callable[[str], int | None] = lambda _: None
    log: Log | None = None
    _seen: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Number of skipped records, by node, stage and class of the error."""

    def decide_undecodable(self, node: str, error: Exception, message: Any) -> None:
        """Decide about a message that a source cannot decode, or whose timestamp is invalid."""
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
        part: Part | None = None,
    ) -> None:
        stage: Stage = "processing" if part is None else "production"
        record = NodeRecord(key, value, timestamp, headers)
        if isinstance(error, SerdeError) and (part == "key" or part == "value"):
            error.part = part
        error = self.program.explain(error, node, None)
        is_earlier = isinstance(error, EarlierRecordError)
        message = None if is_earlier else self.current()
        self._decide(error, stage, node, message, record, part)

    def let_go(
        self,
        node: str,
        error: Exception,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers | None,
        answer: FailureReaction,
    ) -> None:
        """Skip a record that a node fails on, as the operator itself requests."""
        record = NodeRecord(key, value, timestamp, headers)
        error = self.program.explain(error, node, None)
        self._decide(error, "processing", node, self.current(), record, answer=answer)

    def decide_rejected_row(self, node: str, error: Exception, message: Any, row: SinkRow) -> None:
        record = NodeRecord(row.key, row.value, row.timestamp, message.headers())
        self._decide(error, "production", node, message, record, "record")

    def punctuator_failed(self, node: str, error: BaseException) -> None:
        """Decide about a failed punctuator call; its effects before the error remain."""
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
        answer: FailureReaction | None = None,
    ) -> None:
        cause = error.error if isinstance(error, EarlierRecordError) else error
        if not _is_about_a_record(cause):
            raise cause
        at_punctuation = {"timestamp": self.context.timestamp}
        origin = at_punctuation if self.context.is_punctuating else origin_of(message)
        failure = RecordFailure(
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
            else self.handlers.skip(failure, dead_letter=answer == "dead_letter")
        )
        if not isinstance(answered, Continue):
            self.refuse(error, node, message)
        for letter in answered.dead_letters:
            self._send(letter, failure, message)
        self._count_and_log(failure, answered)

    def _answer(self, failure: RecordFailure, message: Any) -> object:
        try:
            return self.handlers.answer(failure)
        except HandlerFailedError as error:
            self.refuse(error, failure.node, message)

    def _send(self, letter: DeadLetter, failure: RecordFailure, message: Any) -> None:
        limit, headers = self.record_limit(letter.topic), letter.headers
        if limit is not None:
            headers = fitted(headers, limit - letter_size(letter.key, letter.value, ()))
        send = (letter.topic, letter.value, letter.key, -1, letter.timestamp)
        try:
            try:
                self.send(*send, list(headers) or None)
            except RefusedTimestampError:
                # The timestamp may be the reason for the dead letter: use the current time.
                self.send(*send[:-1], self.context.now_ms(), list(headers) or None)
        except RecordTooLargeError as error:
            size = letter_size(letter.key, letter.value, headers)
            too_large = LetterTooLargeError(letter.topic, size, error.limit)
            too_large.__cause__ = failure.error
            self.refuse(too_large, failure.node, message)

    def _count_and_log(self, failure: RecordFailure, answer: Continue) -> None:
        reason = _REASONS[failure.stage]
        if isinstance(failure.error, DeadLetterRequested):
            reason = _DEAD_LETTER_REQUESTED
        elif isinstance(failure.error, InvalidTimeError):
            reason = _INVALID_TIME
        self.dropped(failure.node, reason)
        kind = failure.node, failure.stage, type(user_error(failure.error)).__name__
        count = self._seen[kind] = self._seen.get(kind, 0) + 1
        if self.log is not None and is_log_worthy(count):
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
                record_time=_time_of_row(failure),
                error=kind[-1],
                reason=str(failure.error) if is_ours(failure.error) else None,
                dead_letters=len(answer.dead_letters),
                count=count,
            )


def _time_of_row(failure: RecordFailure) -> str | None:
    """Return the time of a row of an archive, which has no offset to find it by."""
    if failure.topic is None or failure.offset is not None or failure.timestamp is None:
        return None
    return moment(failure.timestamp)


def _is_about_a_record(error: Exception) -> bool:
    if isinstance(error, RecordTooLargeError):
        return True
    unrelated = (StreamsError, StateError, RegistryError, BufferFullError, MemoryError)
    return not isinstance(error, unrelated)


def origin_of(message: Any) -> dict[str, Any]:
    """Return the fields of a `Failure` that describe its record; none without a record."""
    if message is None:
        return {}
    offset = message.offset()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": offset if offset >= 0 else None,  # a row of an archive without offsets
        "timestamp": message.timestamp()[1],
        "headers": tuple(message.headers() or ()),
        "key": message.key(),
        "value": message.value(),
    }
