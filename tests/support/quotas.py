"""Quotas of producers: how fast a real broker takes what a client writes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.patience import PATIENCE_S

_ALTER_CLIENT_QUOTAS = (49, 0)
_SETTLED_S = 0.5
"""Brokers learn of a quota in the background."""


@contextmanager
def produce_quota(bootstrap: str, client_id: str, bytes_per_s: int) -> Iterator[None]:
    """Let a broker take no more than so many bytes per second of a client."""
    _alter(bootstrap, client_id, float(bytes_per_s))
    time.sleep(_SETTLED_S)
    try:
        yield
    finally:
        _alter(bootstrap, client_id, None)


def _alter(bootstrap: str, client_id: str, bytes_per_s: float | None) -> None:
    entity = _text("client-id") + _text(client_id)
    remove = bytes_per_s is None
    change = _text("producer_byte_rate") + struct.pack(">d?", bytes_per_s or 0.0, remove)
    one = struct.pack(">i", 1)
    body = one + one + entity + one + change + b"\0"
    head = struct.pack(">hhi", *_ALTER_CLIENT_QUOTAS, 1) + _text("tests")
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE_S) as broker:
        broker.sendall(struct.pack(">i", len(head + body)) + head + body)
        file = broker.makefile("rb")
        (size,) = struct.unpack(">i", file.read(4))
        answer = file.read(size)
    _, _, entries, error = struct.unpack_from(">iiih", answer)
    assert (entries, error) == (1, 0), answer


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
