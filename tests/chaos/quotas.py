"""Client quotas of a cluster, by Kafka's own protocol: librdkafka has no call for them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence

_ALTER_CLIENT_QUOTAS = 49
_ANSWER_S = 10.0
_AGAIN_S = 0.5


class QuotaError(Exception):
    """No node has changed the quotas."""


def set_quotas(
    bootstrap: str,
    quotas: Mapping[str, float | None],
    *,
    client_id: str | None = None,
    seconds: float = 60.0,
) -> None:
    """Change the quotas of a client id.

    Args:
        bootstrap: the nodes, of which any may be down.
        quotas: such as ``producer_byte_rate``; None removes one.
        client_id: None for all that have no quotas of their own.
        seconds: how long to try.

    Raises:
        QuotaError: no node did it in time.
    """
    deadline = time.monotonic() + seconds
    nodes = [tuple(node.rsplit(":", 1)) for node in bootstrap.split(",")]
    while True:
        reasons = []
        for host, port in nodes:
            try:
                code, message = _ask(host, int(port), _request(quotas, client_id))
            except (OSError, struct.error) as error:
                reasons.append(f"{host}:{port}: {error}")
                continue
            if code == 0:
                return
            reasons.append(f"{host}:{port}: error {code} {message}")
        if time.monotonic() > deadline:
            raise QuotaError("; ".join(reasons))
        time.sleep(_AGAIN_S)


def _request(quotas: Mapping[str, float | None], client_id: str | None) -> bytes:
    """Return the request in version 0, about one entity; no name stands for the default one."""
    changes = b"".join(
        _string(name) + struct.pack(">d?", value or 0.0, value is None)
        for name, value in quotas.items()
    )
    entity = struct.pack(">i", 1) + _string("client-id") + _string(client_id)
    entry = struct.pack(">i", 1) + entity + struct.pack(">i", len(quotas)) + changes
    header = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 1) + _string("chaos")
    return header + entry + struct.pack(">?", False)


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text)) + text.encode()


def _ask(host: str, port: int, request: bytes) -> tuple[int, str]:
    """Send a request; returns the error code and the message of its one entry."""
    with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, length)
    # Correlation id, throttle time, count of entries.
    code, size = struct.unpack_from(">hh", answer, 12)
    return code, answer[16 : 16 + max(0, size)].decode()


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: Sequence[bytes] = []
    while count:
        part = connection.recv(count)
        if not part:
            raise ConnectionError("the node closed the connection")
        parts = [*parts, part]
        count -= len(part)
    return b"".join(parts)
