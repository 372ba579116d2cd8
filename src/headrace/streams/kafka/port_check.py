"""What is wrong with a certificate, by OpenSSL's code: what is said of it, and what to do."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

# What listens at an address that does not answer as a broker should, as messages name it.
#
# The look itself is `headrace.streams.kafka.port_check`.


Seen = Literal["kafka", "tls", "http", "other", "closes", "silent", "nothing"]

CORRELATION: Final = b"HEAD"
"""What the answer to the look's Kafka request has behind its size."""
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")

SAYS: Final[dict[Seen, str]] = {
    "kafka": "a Kafka broker answers, without TLS",
    "tls": "TLS is spoken",
    "http": "a web server answers, no Kafka broker",
    "other": "what answers is no Kafka broker",
    "closes": "connections are taken and closed",
    "silent": "connections are taken and nothing is said",
    "nothing": "no connections are taken now",
}


def seen_in(said: bytes) -> Seen:
    """Who begins an answer to a Kafka request so.

    >>> seen_in(b"HTTP/1.1 400"), seen_in(b"SSH-2.0"), seen_in(b"")
    ('http', 'other', 'silent')
    """
    if not said:
        return "silent"
    if said[4:8] == CORRELATION:
        return "kafka"
    if said.startswith((b"HTTP", b"<!DO", b"<htm")):
        return "http"
    return "tls" if said.startswith(_TLS_RECORDS) else "other"


def advice_on(seen: Seen, protocol: str) -> str | None:
    """What may be put right, where what was seen says so.

    Args:
        seen: what is there.
        protocol: the setting `security.protocol`.

    >>> advice_on("tls", "PLAINTEXT")
    'set security.protocol to SSL or SASL_SSL'
    >>> advice_on("tls", "SSL") is None
    True
    """
    with_tls = protocol.upper().endswith("SSL")
    if seen == "tls" and not with_tls:
        return "set security.protocol to SSL or SASL_SSL"
    if seen == "kafka" and with_tls:
        return "set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or name the port for TLS"
    if seen in ("http", "other"):
        return "correct bootstrap.servers"
    if seen == "silent":
        return "see that a Kafka broker is there and does not hang, or correct bootstrap.servers"
    return None


@dataclass(frozen=True, slots=True)
class CertificateFault:
    """Why a broker's certificate is not taken.

    Args:
        said: what is wrong, of "it".
        advice: what to do next.
    """

    said: str
    advice: str


_CLOCK = "have it renewed, or set this machine's clock"
_EXPIRED = CertificateFault("it, or that of an authority above it, has expired", _CLOCK)
_EARLY = CertificateFault("it, or that of an authority above it, is not valid yet", _CLOCK)
_AUTHORITY = CertificateFault(
    "nobody who is trusted here has signed it",
    "set ssl.ca.location to the authority that signed the brokers' certificates",
)
_NAME = CertificateFault(
    "it is not for the name {host}",
    "name the broker as it does in bootstrap.servers and in the broker's advertised.listeners, or "
    "have one made for this name",
)
_REVOKED = CertificateFault("it was revoked", "have the broker given a new one")
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
"""OpenSSL's X509_V_ERR_...: 18 to 21 are ends of chains that lead to no authority of ours."""


def fault_of(code: int, host: str) -> CertificateFault | None:
    """What a code of OpenSSL means, or None for a rare one.

    >>> fault_of(62, "kafka-1").said
    'it is not for the name kafka-1'
    """
    found = _BY_CODE.get(code)
    if found is None:
        return None
    return CertificateFault(found.said.format(host=host), found.advice)


# A look at an address that does not answer as a broker should, for a message.
#
# A client says that nothing came, or that the connection was closed, and not why. So somebody who
# waits in vain is told what was seen: a broker without TLS, TLS, a web server, or nothing. Nor does
# a
# client say why it does not take a certificate. Nothing of the settings is sent, and nothing is
# done
# with the connection.


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
