"""Requests as bytes on a socket to the only broker of a cluster: what no client library sends."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

from tests.support.patience import PATIENCE_S

_NOT_READY = frozenset({3, 5, 6, 14, 15, 16})
"""A new topic that its broker does not lead yet, a coordinator that loads or does not exist yet."""
_CLIENT = b"raw"


def ask(
    bootstrap: str, api: tuple[int, int], body: bytes, error_of: Callable[[bytes], int]
) -> bytes:
    """Send a request again until the broker is ready for it, and return the answer.

    `api` is its key and version; the answer begins behind the correlation id. `error_of` finds the
    error code of the answer, which must be 0 in the end.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = _ask_once(bootstrap, api, body)
        error = error_of(answer)
        if not error:
            return answer
        waits = error in _NOT_READY and time.monotonic() < deadline
        assert waits, f"the broker answered with error {error}"
        time.sleep(0.05)


def error_at(place: int) -> Callable[[bytes], int]:
    """Return a function that reads the error code at a place of an answer (< 0: from its end)."""

    def read(answer: bytes) -> int:
        at = place if place >= 0 else len(answer) + place
        return int(struct.unpack_from(">h", answer, at)[0])

    return read


def _ask_once(bootstrap: str, api: tuple[int, int], body: bytes) -> bytes:
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    message = struct.pack(">hhih", *api, 1, len(_CLIENT)) + _CLIENT + body
    with socket.create_connection((host, int(port)), PATIENCE_S) as broker:
        broker.sendall(struct.pack(">i", len(message)) + message)
        with broker.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            return answers.read(size)[4:]
