"""Address of the server, access by token, and the socket, which is opened first."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from headrace.streams.config.secrets import Secret
from headrace.streams.errors import ConfigError

LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535
TOKEN_MIN = 16
_BACKLOG = 128
_PORT = re.compile(r":\d*$")


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port; port 0 takes a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``PORT``, ``HOST:PORT`` or ``[HOST]:PORT``, or raise ConfigError.

        >>> Address.parse("8080"), Address.parse("[::1]:0")
        (Address(host='127.0.0.1', port=8080), Address(host='::1', port=0))
        """
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
            raise ConfigError(
                f"an address must be [HOST:]PORT with a port up to 65535, not {text!r}"
            )
        return cls(host.strip("[]") or LOOPBACK, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def names_this_machine(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine.

    >>> [names_this_machine(h) for h in ("localhost:80", "127.0.0.1", "[::1]:80", "shop.example")]
    [True, True, True, False]
    """
    name = _PORT.sub("", host).strip("[]").lower()
    return Address(name, 0).is_loopback


def check_guarded(address: Address, *, token: Secret | None, is_open: bool) -> None:
    """Raise ConfigError if machines can reach it without a token, unless declared open."""
    if token is None and not is_open and not address.is_loopback:
        raise ConfigError(
            f"other machines can reach {address}. Give a file with a token, --http-token-file "
            "FILE, or allow access without a token, --http-open"
        )


def read_token(path: Path) -> Secret:
    """Read the token of clients; raise ConfigError if it is too short or not plain ASCII."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token in {path} cannot be read: {error}") from error
    if len(token) < TOKEN_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {path} must be at least {TOKEN_MIN} characters of printable ASCII. "
            "Create it with: openssl rand -hex 32"
        )
    return Secret(token)


def listen(address: Address) -> socket.socket:
    """Open the socket; raise ConfigError if the host is unknown, or the port is taken."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"there is no host {address.host!r} to serve on ({error}). Use an address of this "
            "machine, such as 127.0.0.1, or 0.0.0.0 for all of its addresses"
        ) from error
    family, kind, protocol, _, socket_address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(socket_address)
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        raise ConfigError(
            f"{address} cannot be served on: {error.strerror}. Choose another port, or 0 for a "
            "free port"
        ) from error
    return opened
