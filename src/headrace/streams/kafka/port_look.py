"""A look at an address that does not answer as a broker should, for a message.

A client says that nothing came, or that the connection was closed, and not why. So somebody who
waits in vain is told what was seen: a broker without TLS, TLS, a web server, or nothing. Nor does a
client say why it does not take a certificate. Nothing of the settings is sent, and nothing is done
with the connection.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.streams.contact.certificates import CertificateFault, fault_of
from headrace.streams.contact.seen import CORRELATION, Seen, seen_in

_CLIENT_ID = b"look\r\n\r\n"
"""With the end of a line, for which a server waits that reads lines."""
_API_VERSIONS = struct.pack(">hh4sh", 18, 0, CORRELATION, len(_CLIENT_ID)) + _CLIENT_ID


def look(address: str, *, timeout_s: float = 1.0) -> Seen:
    """Look what is at an address.

    Args:
        address: host and port, with or without a protocol.
        timeout_s: how long to wait for an answer, twice at most.
    """
    place = _place(address)
    try:
        said = _answer(place, timeout_s)
    except OSError:
        return "nothing"
    seen = "closes" if said is None else seen_in(said)
    if seen in ("closes", "silent") and _speaks_tls(place, timeout_s):
        return "tls"
    return seen


def look_at_certificate(
    address: str, config: Mapping[str, Any], *, timeout_s: float = 2.0
) -> CertificateFault | None:
    """Find out why a broker's certificate is not taken; None where that cannot be told.

    Args:
        address: host and port.
        config: librdkafka's settings; those are read that say who is trusted.
        timeout_s: how long to wait for the connection, and for the handshake.
    """
    place = _place(address)
    try:
        context = _trusting(config)
        with (
            socket.create_connection(place, timeout_s) as there,
            context.wrap_socket(there, server_hostname=place[0]),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return fault_of(error.verify_code, place[0])
    except (OSError, ValueError):
        return None


def _trusting(config: Mapping[str, Any]) -> ssl.SSLContext:
    """What verifies as librdkafka does with these settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.get("ssl.endpoint.identification.algorithm") != "none"
    context.hostname_checks_common_name = True
    file, pem = config.get("ssl.ca.location"), config.get("ssl.ca.pem")
    if file and file != "probe":
        is_directory = Path(file).is_dir()
        context.load_verify_locations(
            cafile=None if is_directory else file, capath=file if is_directory else None
        )
    elif pem:
        context.load_verify_locations(cadata=str(pem))
    else:
        context.load_default_certs()
    return context


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def _answer(place: tuple[str, int], timeout_s: float) -> bytes | None:
    """The first bytes that come back; None where the other side closes before there is one."""
    with socket.create_connection(place, timeout_s) as there:
        said = b""
        give_up_at = time.monotonic() + timeout_s
        try:
            there.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
            while len(said) < 8 and (left := give_up_at - time.monotonic()) > 0:
                there.settimeout(left)
                more = there.recv(64)
                if not more:
                    return said or None
                said += more
        except TimeoutError:
            pass
        except OSError:
            return said or None
        return said


def _speaks_tls(place: tuple[str, int], timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection(place, timeout_s) as there,
            context.wrap_socket(there, server_hostname=place[0]),
        ):
            return True
    except ssl.SSLError as error:
        # One that asks for a certificate of ours speaks it, too.
        return "alert" in str(error).lower()
    except OSError:
        return False
