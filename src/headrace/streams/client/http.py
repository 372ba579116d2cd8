"""HTTP client of a host, with reused connections.

It uses Python's own client, so that programs need no further package. All requests are read-only,
so a request that fails because the server has closed an idle connection is repeated.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec

from headrace.streams.config.secrets import Secret
from headrace.streams.errors import ConfigError
from headrace.streams.queries.errors import ClosedConnectionError, UnreachedHostError

# Interruptible waits.


class Interruption:
    """Interruptible waits of a client, at sockets and in pauses. Thread-safe.

    >>> ending = Interruption()
    >>> part = ending.part()
    >>> ending.end()
    >>> part.is_over
    True
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._parts: WeakSet[Interruption] = WeakSet()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def part(self) -> Interruption:
        """Return a part that ends with this object, and can be ended earlier."""
        made = Interruption()
        with self._lock:
            self._parts.add(made)
            is_over = self.is_over
        if is_over:
            made.end()
        return made

    def note(self, sock: socket.socket) -> None:
        """Register a socket, which the end shuts down; raise ClosedConnectionError after it."""
        with self._lock:
            self.require()
            self._sockets.add(sock)

    def require(self) -> None:
        if self.is_over:
            raise ClosedConnectionError(
                "the connection is closed. Open a new connection to query again"
            )

    def pause(self, seconds: float) -> None:
        self._over.wait(seconds)

    def end(self) -> None:
        with self._lock:
            self._over.set()
            sockets, parts = [*self._sockets], [*self._parts]
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for part in parts:
            part.end()


# Server-sent events.


EVENTS = "text/event-stream"
_PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """Server-sent event with JSON; a heartbeat has an empty name."""

    name: str
    data: bytes
    position: str | None


class EventStream:
    """Server-sent events of a connection. A single thread reads; any thread may cut it.

    `unreached` creates the error for the end of the stream.
    """

    def __init__(
        self,
        answer: http.client.HTTPResponse,
        sock: socket.socket,
        unreached: Callable[[str | Exception], UnreachedHostError],
    ) -> None:
        self._answer = answer
        self._socket = sock
        self._unreached = unreached

    def batches(self) -> Iterator[list[ServerSentEvent]]:
        """Yield the events of each received piece; raise UnreachedHostError at the end."""
        left = b""
        while True:
            try:
                data = self._answer.read1(_PIECE_BYTES)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self._unreached(error) from error
            if not data:
                raise self._unreached("the connection has ended")
            *complete, left = (left + data).split(b"\n\n")
            if complete:
                yield [_event(text) for text in complete]

    def cut(self) -> None:
        """Interrupt a waiting reader, which then closes the stream."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the stream; called by its reader."""
        self.cut()
        self._answer.close()


def _event(text: bytes) -> ServerSentEvent:
    """Parse an event.

    >>> _event(b'id: 0:7' + bytes([10]) + b'event: change' + bytes([10]) + b'data: {}')
    ServerSentEvent(name='change', data=b'{}', position='0:7')
    >>> _event(b': alive')
    ServerSentEvent(name='', data=b'', position=None)
    """
    name, data, position = "", b"", None
    for line in text.split(b"\n"):
        field, _, value = line.partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"data":
            data = value
        elif field == b"id":
            position = value.decode()
    return ServerSentEvent(name, data, position)


# Tokens as header values.


def sent_token(given: str | Secret, *, named: str = "the token") -> Secret:
    """Strip whitespace, such as a line end; the ConfigError does not contain the token.

    >>> sent_token("abc\\n").reveal()
    'abc'
    """
    token = str(given.reveal() if isinstance(given, Secret) else given).strip()
    if not token:
        raise ConfigError(f"{named} is empty. Use the token of the hosts")
    if not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{named} must be printable ASCII without line ends. Use the token of the hosts"
        )
    return Secret(token)


CONNECT_S = 2.0
IDLE_MAX = 8
"""Maximum number of idle connections."""
IDLE_S = 30.0
"""Maximum idle time of a connection; the server closes idle connections after a minute."""
ANSWER_MAX_BYTES = 256 << 20
_UNKNOWN_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)
"""Permanent errors of a name look-up."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Response of a host: status code and JSON."""

    code: int
    document: Any


class HttpHost:
    """Host of a remote application, with its connections. Thread-safe.

    Args:
        url: ``http://HOST:PORT`` or ``https://…``, with the path prefix of ``/api``.
        context: TLS context; None uses the system's trusted certificates.

    Raises:
        ConfigError: the URL is invalid.
    """

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if host is None or parts.scheme not in ("http", "https"):
            raise ConfigError(
                "the URL of an application must be http://HOST:PORT or https://HOST:PORT, not "
                f"{url!r}"
            )
        self.url = url.rstrip("/")
        self._host, self._path = host, parts.path.rstrip("/")
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._context = context
        if parts.scheme == "https" and context is None:
            self._context = ssl.create_default_context()
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._ending = Interruption()

    def ask(
        self,
        target: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Reply:
        """Send a request: GET, or POST with a body; fail after `timeout_s` without data."""
        method = "GET" if body is None else "POST"
        pooled = self._take()
        while True:
            connection = pooled or self._connect()
            try:
                self._reach(connection, timeout_s, self._ending)
                connection.request(method, self._path + target, body, dict(headers))
                answer = connection.getresponse()
                data = answer.read(ANSWER_MAX_BYTES)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._ending.require()
                if pooled is not None and not isinstance(error, TimeoutError):
                    pooled = None  # the server has closed the idle connection
                    continue
                raise self._unreached(error) from error
            if answer.will_close or not answer.isclosed():
                connection.close()
            else:
                self._return_to_pool(connection)
            return self._read(answer.status, data)

    def listen(
        self,
        target: str,
        *,
        headers: Mapping[str, str],
        begin_s: float,
        timeout_s: float,
        ending: Interruption,
    ) -> Reply | EventStream:
        """Open an event stream; return the response if the host rejects it.

        `begin_s` and `timeout_s` are time-outs before the first data, and between data.
        """
        connection = self._connect()
        try:
            sock = self._reach(connection, begin_s, ending)
            connection.request("GET", self._path + target, headers=dict(headers))
            answer = connection.getresponse()
            if answer.status == 200 and answer.headers.get_content_type() == EVENTS:
                sock.settimeout(timeout_s)
                return EventStream(answer, sock, self._unreached)
            data = answer.read(ANSWER_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            ending.require()
            raise self._unreached(error) from error
        connection.close()
        return self._read(answer.status, data)

    def _reach(
        self, connection: http.client.HTTPConnection, timeout_s: float, ending: Interruption
    ) -> socket.socket:
        """Connect if necessary; return the socket, which the connection may drop later."""
        ending.require()
        if connection.sock is None:
            connection.sock = self._opened(
                connection.host, connection.port, min(CONNECT_S, timeout_s), ending
            )
        sock: socket.socket = connection.sock
        try:
            ending.note(sock)
        except ClosedConnectionError:
            connection.close()
            raise
        sock.settimeout(timeout_s)
        return sock

    def _opened(
        self, host: str, port: int, timeout_s: float, ending: Interruption
    ) -> socket.socket:
        refused: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                ending.note(sock)
                sock.settimeout(timeout_s)
                sock.connect(address)
                ending.require()  # a socket that was shut down meanwhile looks connected
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._secured(sock, host, ending)
            except OSError as error:
                sock.close()
                refused = error
            except BaseException:
                sock.close()
                raise
        assert refused is not None, host
        raise refused

    def _secured(self, sock: socket.socket, host: str, ending: Interruption) -> socket.socket:
        if self._context is None:
            return sock
        secured = self._context.wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )
        try:
            ending.note(secured)
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _read(self, code: int, data: bytes) -> Reply:
        try:
            return Reply(code, msgspec.json.decode(data))
        except msgspec.DecodeError as error:
            raise self._unreached(
                f"status {code}, and its answer is not JSON of an application"
            ) from error

    def _unreached(self, why: str | Exception) -> UnreachedHostError:
        problem = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        is_other = _is_other(why)
        advice = "Retry later"
        if isinstance(why, ssl.SSLCertVerificationError):
            advice = "Give a TLS context that trusts its certificate as context="
        elif isinstance(why, ConnectionRefusedError):
            advice = "Start the host, retry later, or correct its address"
        elif isinstance(why, socket.gaierror):
            advice = "Correct its name"
        elif is_other:
            advice = f"Use {'https' if self._context is None else 'http'}://, or another port"
        return UnreachedHostError(
            f"host {self.url} does not answer: {problem}. {advice}",
            host=self.url,
            is_silent=isinstance(why, TimeoutError),
            is_other=is_other,
        )

    def _connect(self) -> http.client.HTTPConnection:
        # Its socket is opened, and secured, here, where it can be interrupted.
        return http.client.HTTPConnection(self._host, self._port)

    def _take(self) -> http.client.HTTPConnection | None:
        oldest_s = time.monotonic() - IDLE_S
        with self._lock:
            while self._idle:
                since_s, connection = self._idle.pop()
                if since_s >= oldest_s:
                    return connection
                connection.close()
        return None

    def _return_to_pool(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._ending.is_over and len(self._idle) < IDLE_MAX:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._ending.end()
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


def _is_other(why: str | Exception) -> bool:
    """Return whether the peer is not an application, as opposed to a host that starts or stops."""
    ended = (ssl.SSLEOFError, ssl.SSLZeroReturnError, http.client.RemoteDisconnected, TimeoutError)
    other = (ssl.SSLError, http.client.BadStatusLine)
    if isinstance(why, socket.gaierror):
        return why.errno in _UNKNOWN_NAME
    return isinstance(why, other) and not isinstance(why, ended)
