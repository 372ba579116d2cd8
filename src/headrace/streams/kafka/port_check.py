"""Check of an address that does not answer like a broker, and of its certificate."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

# Kinds of servers at an address that does not answer like a broker, with their descriptions.


ServerKind = Literal["kafka", "tls", "http", "other", "closes", "silent", "nothing"]

CORRELATION: Final = b"HEAD"
"""Correlation ID of the check's Kafka request, which follows the size of the response."""
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")

DESCRIPTIONS: Final[dict[ServerKind, str]] = {
    "kafka": "a Kafka broker answers, without TLS",
    "tls": "the server uses TLS",
    "http": "a web server answers, not a Kafka broker",
    "other": "the server is not a Kafka broker",
    "closes": "connections are accepted and closed",
    "silent": "connections are accepted and nothing is sent",
    "nothing": "no connections are accepted now",
}


_SETTINGS_FIT = (
    "check the settings ssl.* and sasl.*, and the log of the broker; if they are right, it may be "
    "overloaded: try again"
)
_NO_LOGIN = "check whether the broker is overloaded, or requires security.protocol=SASL_PLAINTEXT"


def classify(data: bytes) -> ServerKind:
    """Classify a server by the first bytes of its answer to a Kafka request.

    >>> classify(b"HTTP/1.1 400"), classify(b"SSH-2.0"), classify(b"")
    ('http', 'other', 'silent')
    """
    if not data:
        return "silent"
    if data[4:8] == CORRELATION:
        return "kafka"
    if data.startswith((b"HTTP", b"<!DO", b"<htm")):
        return "http"
    return "tls" if data.startswith(_TLS_RECORDS) else "other"


def advice_for(kind: ServerKind, protocol: str) -> str | None:
    """Return advice that fits a result and a `security.protocol`; None if nothing answers.

    >>> advice_for("tls", "PLAINTEXT")
    'set security.protocol to SSL or SASL_SSL'
    >>> advice_for("nothing", "SSL") is None
    True
    """
    with_tls = protocol.upper().endswith("SSL")
    if kind == "tls":
        return _SETTINGS_FIT if with_tls else "set security.protocol to SSL or SASL_SSL"
    if kind == "kafka" and with_tls:
        return "set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or name the port for TLS"
    if kind == "kafka":
        return _NO_LOGIN if protocol.upper() == "PLAINTEXT" else _SETTINGS_FIT
    if kind == "closes":
        return "it may expect another security.protocol, with or without TLS"
    if kind in ("http", "other"):
        return "correct bootstrap.servers"
    if kind == "silent":
        return "check that a Kafka broker runs there and responds, or correct bootstrap.servers"
    return None


@dataclass(frozen=True, slots=True)
class CertificateFault:
    """Reason why a certificate is rejected, with the subject "it", and the fix."""

    reason: str
    advice: str


_CLOCK = "renew it, or set this machine's clock"
_EXPIRED = CertificateFault("it, or that of an authority above it, has expired", _CLOCK)
_EARLY = CertificateFault("it, or that of an authority above it, is not valid yet", _CLOCK)
_AUTHORITY = CertificateFault(
    "no trusted authority has signed it",
    "set ssl.ca.location to the authority that signed the brokers' certificates",
)
_NAME = CertificateFault(
    "it is not for the name {host}",
    "name the broker as it does in bootstrap.servers and in the broker's advertised.listeners, or "
    "get a certificate for this name",
)
_REVOKED = CertificateFault("it was revoked", "give the broker a new certificate")
_BY_CODE = {
    9: _EARLY,
    10: _EXPIRED,
    18: _AUTHORITY,
    19: _AUTHORITY,
    20: _AUTHORITY,
    21: _AUTHORITY,
    23: _REVOKED,
    62: _NAME,
    64: _NAME,
}
"""OpenSSL's X509_V_ERR_...: 18 to 21 are chains that end without a trusted authority."""


def fault_of(code: int, host: str) -> CertificateFault | None:
    """Return the meaning of an OpenSSL code, or None for a rare code.

    >>> fault_of(62, "kafka-1").reason
    'it is not for the name kafka-1'
    """
    fault = _BY_CODE.get(code)
    if fault is None:
        return None
    return CertificateFault(fault.reason.format(host=host), fault.advice)


# Check of an address that does not answer like a broker, for an error message.
#
# A client reports that no answer arrived, or that the connection was closed, without the reason. So
# the message names the kind of server: a broker without TLS, TLS, a web server, or none. Clients do
# not report why they reject a certificate either. The check sends no settings, and does not use the
# connection further.


_CLIENT_ID = b"look\r\n\r\n"
"""Ends with an empty line, for which line-based servers wait."""
_API_VERSIONS = struct.pack(">hh4sh", 18, 0, CORRELATION, len(_CLIENT_ID)) + _CLIENT_ID


def check_port(address: str, *, timeout_s: float = 1.0) -> ServerKind:
    """Classify the server at an address; `timeout_s` applies up to twice."""
    host_port = _host_and_port(address)
    try:
        data = _answer(host_port, timeout_s)
    except OSError:
        return "nothing"
    kind = "closes" if data is None else classify(data)
    if kind in ("closes", "silent") and _speaks_tls(host_port, timeout_s):
        return "tls"
    return kind


def check_certificate(
    address: str, config: Mapping[str, Any], *, timeout_s: float = 2.0
) -> CertificateFault | None:
    """Return None if the reason is not found.

    Only the trust settings of `config` are used; `timeout_s` bounds connection and handshake each.
    """
    host_port = _host_and_port(address)
    try:
        context = _trusting(config)
        with (
            socket.create_connection(host_port, timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=host_port[0]),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return fault_of(error.verify_code, host_port[0])
    except (OSError, ValueError):
        return None


def _trusting(config: Mapping[str, Any]) -> ssl.SSLContext:
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


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def _answer(host_port: tuple[str, int], timeout_s: float) -> bytes | None:
    """Return the first bytes, or None if the server closes the connection first."""
    with socket.create_connection(host_port, timeout_s) as connection:
        data = b""
        give_up_at = time.monotonic() + timeout_s
        try:
            connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
            while len(data) < 8 and (left := give_up_at - time.monotonic()) > 0:
                connection.settimeout(left)
                more = connection.recv(64)
                if not more:
                    return data or None
                data += more
        except TimeoutError:
            pass
        except OSError:
            return data or None
        return data


def _speaks_tls(host_port: tuple[str, int], timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection(host_port, timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=host_port[0]),
        ):
            return True
    except ssl.SSLError as error:
        # A server that requires a client certificate uses TLS, too.
        return "alert" in str(error).lower()
    except OSError:
        return False
