"""Server-sent events as they come over one connection, until it ends."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from headrace.streams.queries.errors import UnreachedHostError

EVENTS = "text/event-stream"
_PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Heard:
    """An event.

    Args:
        name: empty of what only says that it goes on.
        data: JSON.
        position: where one is behind it; None where it does not say.
    """

    name: str
    data: bytes
    position: str | None


class EventStream:
    """See the module. One thread takes from it; any may cut it.

    Args:
        answer: where they come from.
        unreached: makes the error that says why it ended.
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

    def pieces(self) -> Iterator[list[Heard]]:
        """What there is each time that something has come.

        Raises:
            UnreachedHostError: it was silent, or cut.
        """
        left = b""
        while True:
            try:
                data = self._answer.read1(_PIECE_BYTES)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self._unreached(error) from error
            if not data:
                raise self._unreached("it has ended")
            *whole, left = (left + data).split(b"\n\n")
            if whole:
                yield [_heard(one) for one in whole]

    def cut(self) -> None:
        """End it under whoever waits for what comes; he then closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, by the thread that takes from it."""
        self.cut()
        self._answer.close()


def _heard(text: bytes) -> Heard:
    """Read an event.

    >>> _heard(b'id: 0:7' + bytes([10]) + b'event: change' + bytes([10]) + b'data: {}')
    Heard(name='change', data=b'{}', position='0:7')
    >>> _heard(b': alive')
    Heard(name='', data=b'', position=None)
    """
    name, data, position = "", b"", None
    for line in text.split(b"\n"):
        field, _, said = line.partition(b": ")
        if field == b"event":
            name = said.decode()
        elif field == b"data":
            data = said
        elif field == b"id":
            position = said.decode()
    return Heard(name, data, position)
