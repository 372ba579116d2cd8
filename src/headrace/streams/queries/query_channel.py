"""Queries from the supervisor to a worker's process, over their own socket.

    supervisor ── length (4), msgpack of [number, question] ─► worker
               ◄─ length (4), msgpack of [number, outcome] ───

Each end has a reader thread and a writer thread, started with the first query. Neither the worker's
thread nor the caller waits for the socket. A query whose caller has given up is still answered, and
its response is dropped by its number.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue

import msgspec

from headrace.streams.queries.query_queue import (
    Awaited,
    Outcome,
    QueryQueue,
    QueryRefusal,
    StateQueryRequest,
    StateQueryResponse,
)

_LENGTH = struct.Struct(">I")
FRAME_MAX = 64 << 20
"""Maximum size of a frame, as large as a record can be; a larger frame closes the channel."""
UNSENT_MAX = 64
"""Maximum number of queries in the queue for a worker that does not read."""
_ENDED = QueryRefusal("its worker has ended; ask again later")
_FULL = QueryRefusal("its worker reads no questions now; ask again later")

_encode = msgspec.msgpack.Encoder().encode


class _Request(msgspec.Struct, frozen=True, array_like=True):
    number: int
    question: StateQueryRequest


class _Response(msgspec.Struct, frozen=True, array_like=True):
    number: int
    told: StateQueryResponse | None = None
    refused: QueryRefusal | None = None


def question_channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


class _Writer:
    """Writer of messages in their order, in its own thread."""

    def __init__(self, ours: socket.socket, name: str) -> None:
        self._socket = ours
        self._name = name
        self._messages: SimpleQueue[object | None] = SimpleQueue()
        self._begin = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, message: object) -> bool:
        """Return False if the queue is full."""
        if self._messages.qsize() >= UNSENT_MAX:
            return False
        self._messages.put(message)
        with self._begin:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return True

    def end(self) -> None:
        self._messages.put(None)

    def _run(self) -> None:
        while (message := self._messages.get()) is not None:
            frame = _encode(message)
            try:
                self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            except OSError:  # the other end is gone
                return


def _frame(ours: socket.socket) -> bytes | None:
    head = _exactly(ours, _LENGTH.size)
    if head is None:
        return None
    length = _LENGTH.unpack(head)[0]
    return None if length > FRAME_MAX else _exactly(ours, length)


def _exactly(ours: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = ours.recv(min(size - len(parts), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


class QueryChannel:
    """Supervisor side of the query channel, which closes the socket. Thread-safe."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._writer = _Writer(ours, "headrace-asks")
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, Callable[[Outcome], None]] = {}
        self._has_begun = False
        self._is_over = False

    def ask(self, question: StateQueryRequest, within_s: float) -> StateQueryResponse:
        awaited = Awaited()
        number = self._send(question, awaited.bring)
        try:
            return awaited.wait(within_s)
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _send(self, question: StateQueryRequest, done: Callable[[Outcome], None]) -> int:
        with self._lock:
            number = next(self._numbers)
            if self._is_over:
                done(_ENDED)
                return number
            self._waiting[number] = done
            if not self._has_begun:
                self._has_begun = True
                threading.Thread(target=self._read, name="headrace-answers", daemon=True).start()
        if not self._writer.send(_Request(number, question)):
            done(_FULL)
        return number

    def _read(self) -> None:
        decode = msgspec.msgpack.Decoder(_Response).decode
        while (frame := _frame(self._socket)) is not None:
            try:
                said = decode(frame)
            except msgspec.DecodeError:
                break
            with self._lock:
                done = self._waiting.pop(said.number, None)
            outcome = said.told or said.refused
            if done is not None and outcome is not None:
                done(outcome)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            left, self._waiting = self._waiting, {}
        for done in left.values():
            done(_ENDED)
        self._writer.end()

    def close(self) -> None:
        """Close the socket; waiting callers get an error that the worker has ended."""
        self._end()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the thread that reads notices
        self._socket.close()


def serve_questions(desk: QueryQueue, theirs: socket.socket) -> None:
    """Answer the queries of a socket through the queue of a worker, in a thread."""
    writer = _Writer(theirs, "headrace-answers")

    def answer(number: int, outcome: Outcome) -> None:
        if isinstance(outcome, StateQueryResponse):
            writer.send(_Response(number, told=outcome))
        else:
            writer.send(_Response(number, refused=outcome))

    def read() -> None:
        decode = msgspec.msgpack.Decoder(_Request).decode
        while (frame := _frame(theirs)) is not None:
            try:
                asked = decode(frame)
            except msgspec.DecodeError:
                break
            desk.submit(asked.question, partial(answer, asked.number))
        writer.end()
        theirs.close()

    threading.Thread(target=read, name="headrace-questions", daemon=True).start()
