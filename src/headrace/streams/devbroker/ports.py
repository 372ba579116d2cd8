"""TCP ports on the loopback interface: which are free, and which to take."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection

# Below the range from which systems give ports to outgoing connections: a port chosen now is
# not handed to somebody else's connection before the broker binds it.
_LOWEST, _HIGHEST = 20_000, 32_000
_ATTEMPTS = 1_000


def why_taken(port: int) -> str | None:
    """Return why no server can listen on this port now; None where one can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except PermissionError:
            return f"port {port} needs the rights of the system's administrator"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} is taken by another process"
            return f"port {port} cannot be used: {error.strerror}"
    return None


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    return why_taken(port) is None


def choose_base(count: int) -> int:
    """Return a port such that it and the `count - 1` after it are free."""
    for _ in range(_ATTEMPTS):
        base = random.randrange(_LOWEST, _HIGHEST)  # noqa: S311 - no secret
        if all(is_free(base + step) for step in range(count)):
            return base
    raise OSError(f"no {count} free ports in a row between {_LOWEST} and {_HIGHEST}")


def choose_ports(count: int, *, avoiding: Collection[int]) -> list[int]:
    """Return `count` different free ports, none of `avoiding`."""
    chosen: list[int] = []
    while len(chosen) < count:
        port = choose_base(1)
        if port not in chosen and port not in avoiding:
            chosen.append(port)
    return chosen
