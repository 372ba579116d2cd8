"""Socket between the supervisor and a worker's process, for commands, reports and queries.

    supervisor ── Launch, SetLogLevel, QueryCommand, Stop ───────────────────────────► worker
               ◄─ Loaded, Status, WorkerSnapshot, FailureReport, Unreached, Answer, Ended ──

A message is a length (4 bytes) and msgpack of [type, content]. A thread writes it (see
`BoundedWriter`), so neither end waits for the other. While the other end does not read, messages
wait in memory up to a limit, and further messages are dropped, which is logged with their number.
A report contains the whole state rather than changes, so the next report replaces a dropped report.

If the socket closes before `Stop`, the supervisor is dead, and the worker closes on its own. This
requires neither a signal, nor polling of the parent process, nor other features of the operating
system.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from headrace.state.log import get_logger
from headrace.streams.bounded_writer import BoundedWriter
from headrace.streams.config.secrets import Secret, guarded
from headrace.streams.config.settings import origins_of
from headrace.streams.kafka.unreached import Unreached
from headrace.streams.logs import LogFormat
from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.queries.query_queue import (
    Outcome,
    QueryRefusal,
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
    await_response,
    resolve,
)
from headrace.streams.supervisor.worker_reports import Ended, Loaded, Status
from headrace.streams.tasks.failures import FailureReport

MESSAGE_MAX = 64 << 20
"""Maximum size of a message, as large as a record can be; a larger message closes the channel."""
_READ_BYTES = 256 << 10
_LENGTH = struct.Struct(">I")
_ENDED = QueryRefusal("its worker has ended. Retry later")
_FULL = QueryRefusal("its worker reads no queries now. Retry later")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start parameters of all workers.

    Args:
        origins: origin of each setting, if `settings` does not contain it.
        again: command-line options that reproduce these settings.
        endpoint: endpoint of this host's stores, unless the settings contain it.
    """

    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    log_format: LogFormat = "json"
    log_level: str = "info"
    colors: bool = False
    terminal: bool = False
    endpoint: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "origins", {**origins_of(self.settings), **self.origins})
        object.__setattr__(self, "settings", guarded(self.settings))


@dataclass(frozen=True, slots=True)
class Stop:
    """Request to close; `leave` to leave the group regardless of the setting on.stop."""

    leave: bool | None = None


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Request to change the log level."""

    level: str


@dataclass(frozen=True, slots=True)
class QueryCommand:
    """Query for rows in the worker's memory; its answer has the same number."""

    number: int
    request: StateQueryRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to a query, or the reason why there is none."""

    number: int
    response: StateQueryResponse | None = None
    refused: QueryRefusal | None = None


Report = Loaded | Status | FailureReport | Unreached | WorkerSnapshot | Ended
Command = Launch | Stop | SetLogLevel | QueryCommand
Message = Report | Command | Answer

_KINDS = (
    *(Loaded, Status, FailureReport, Unreached, WorkerSnapshot, Ended),
    *(Launch, Stop, SetLogLevel, QueryCommand, Answer),
)
_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in _KINDS
}
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_ENCODER = msgspec.msgpack.Encoder(enc_hook=Secret.reveal)


def encode(message: Message) -> bytes:
    content = _ENCODER.encode((type(message).__name__, message))
    return _LENGTH.pack(len(content)) + content


def decode(content: bytes) -> Message:
    """Decode a message without its length.

    >>> decode(encode(Stop(leave=True))[4:])
    Stop(leave=True)
    """
    name, body = _ENVELOPE.decode(content)
    message: Message = _DECODERS[name].decode(body)
    return message


class Channel:
    """An end of the socket between the supervisor and a worker.

    Args:
        sock: socket of this end; the supervisor's does not block.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()
        self.has_ended = False
        """Whether the other end was closed."""
        self._writer = BoundedWriter(sock.fileno(), on_dropped=_log_dropped)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, *, always: bool = False) -> bool:
        """Queue a message without blocking; return False if it was dropped over the limit."""
        return self._writer.put(encode(message), always=always)

    def send_and_flush(self, message: Message, *, within_s: float = 1.0) -> bool:
        """Queue a message regardless of the limit; return whether it was written in time."""
        return self.send(message, always=True) and self._writer.drain(within_s)

    def receive(self) -> Iterator[Message]:
        """Yield messages until the other end closes, or until a read would block."""
        yield from self._parse_messages()
        while not self.has_ended:
            try:
                part = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            self.has_ended = not part
            self._received += part
            yield from self._parse_messages()

    def _parse_messages(self) -> Iterator[Message]:
        """Yield messages that have arrived completely."""
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if length > MESSAGE_MAX:
                self.has_ended = True
                return
            if len(self._received) < end:
                return
            content = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield decode(content)

    def close(self) -> None:
        """Close the socket; messages that were not written are lost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._writer.close(within_s=0, joins=True)  # before its file descriptor is used again
        self._socket.close()


def _log_dropped(messages: int) -> None:
    get_logger().warning(
        "messages_dropped",
        messages=messages,
        reason="the process at the other end of the channel did not read for some time",
    )


class WorkerQueries:
    """Queries for rows in a worker's memory, over its channel. Thread-safe.

    A query whose caller has given up is still answered; its response is dropped by its number.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, Future[Outcome]] = {}
        self._is_over = False

    def ask(self, request: StateQueryRequest, within_s: float) -> StateQueryResponse:
        future: Future[Outcome] = Future()
        with self._lock:
            if self._is_over:
                raise UnansweredError(_ENDED)
            number = next(self._numbers)
            self._waiting[number] = future
        if not self._channel.send(QueryCommand(number, request)):
            resolve(future, _FULL)
        try:
            return await_response(future, within_s)
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def on_answer(self, answer: Answer) -> None:
        with self._lock:
            future = self._waiting.pop(answer.number, None)
        outcome = answer.response or answer.refused
        if future is not None and outcome is not None:
            resolve(future, outcome)

    def close(self) -> None:
        """Answer all waiting and later queries with the error that the worker has ended."""
        with self._lock:
            self._is_over = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            resolve(future, _ENDED)
