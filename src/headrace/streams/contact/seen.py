"""What listens at an address that does not answer as a broker should, as messages name it.

The look itself is `headrace.streams.kafka.port_look`.
"""

from __future__ import annotations

from typing import Final, Literal

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
