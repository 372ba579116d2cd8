"""What a client says of brokers that it cannot use, read from its own words.

librdkafka tells it in two ways: errors with a code, and lines of its log, of which some carry the
reason that the error leaves out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headrace.streams.contact.seen import SAYS, seen_in

Kind = Literal[
    "refused",
    "unresolved",
    "tls",
    "certificate",
    "credentials",
    "no_login",
    "stranger",
    "closed",
    "unknown",
]

_LINE = re.compile(
    r"(?:\[thrd:[^\]]*\]: )?(?:\w+://)?(?P<address>[^\s/]+:\d+)/\S+: (?P<reason>.*?)"
    r"(?: \(after \d+ms in state (?P<state>\w+)(?:, [^)]*)?\))?(?: \(_\w+\))?$",
    re.DOTALL,
)
_TRIED = {
    "CONNECT": "to connect",
    "SSL_HANDSHAKE": "the TLS handshake",
    "APIVERSION_QUERY": "to ask for its versions",
    "AUTH_HANDSHAKE": "to log in",
    "AUTH_REQ": "to log in",
    "AUTH_LEGACY": "to log in",
}
_ADVICE: dict[Kind, str] = {
    "refused": "nothing listens there: start the brokers, or correct bootstrap.servers",
    "unresolved": "the name has no address: correct bootstrap.servers, or the machine's DNS",
    "tls": "see that the port speaks TLS, and look at security.protocol and the settings ssl.*",
    "certificate": "set ssl.ca.location to the authority that signed the brokers' certificates, "
    "and bootstrap.servers to a name that is in them",
    "credentials": "correct sasl.mechanism, sasl.username and sasl.password",
    "no_login": "it asks for no login: set security.protocol to PLAINTEXT or SSL",
    "stranger": "correct bootstrap.servers",
    "closed": "it may expect another security.protocol, with or without TLS",
    "unknown": "see that the brokers are up and that no firewall is between",
}
_RESPONSE = re.compile(r"Invalid response size (\d+) ")
"""What is no Kafka broker says something else where the size of an answer is to be."""
_GUESS = re.compile(r":? (?:probably due to|might be caused by) .*broker version.*", re.DOTALL)
"""Brokers that old are none that we work with; a look at the port says what there is."""
_PASSING_LOGIN = re.compile(r"oauthbearer.*token|token.*oauthbearer", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BrokerFailure:
    """Why a broker cannot be used.

    Args:
        tried: what was going on.
        reason: in librdkafka's words.
    """

    address: str
    tried: str
    reason: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.address}, tried {self.tried}: {self.reason}"

    @property
    def is_final(self) -> bool:
        """Whether to try again would end the same, until a person has changed something."""
        return self.kind in ("certificate", "credentials", "no_login")

    @property
    def is_plain(self) -> bool:
        """Whether it says what is wrong; a look at the port may say more where it does not."""
        return self.kind not in ("tls", "closed", "unknown")

    @property
    def advice(self) -> str:
        """What to do next."""
        return _ADVICE[self.kind]


def read_failure(text: str) -> BrokerFailure | None:
    """Read an error's text, or a line of the log; None where it is about no broker.

    Example:
        >>> failure = read_failure("kafka:9092/bootstrap: Connect to ipv4#10.0.0.7:9092 failed: "
        ...     "Connection refused (after 0ms in state CONNECT)")
        >>> print(failure, "-", failure.kind)
        kafka:9092, tried to connect: Connect to ipv4#10.0.0.7:9092 failed: Connection refused - \
refused
        >>> read_failure("1/1 brokers are down") is None
        True
    """
    found = _LINE.fullmatch(text.strip())
    if found is None:
        return None
    reason = found["reason"]
    connects = reason.startswith("Connect to ")  # whatever state it is told in
    tried = _TRIED.get("CONNECT" if connects else found["state"] or "", "to use it")
    kind = _kind(reason, found["state"] or "")
    size = _RESPONSE.search(reason)
    if size is not None:
        kind, reason = "stranger", SAYS[seen_in(int(size[1]).to_bytes(4))]
    return BrokerFailure(found["address"], tried, _GUESS.sub("", reason), kind)


def _kind(reason: str, state: str) -> Kind:
    low = reason.lower()
    if "verify failed" in low or "certificate unknown" in low:
        return "certificate"
    if state == "SSL_HANDSHAKE" or ("handshake failed" in low and "ssl" in low):
        return "tls"
    if low.rstrip().endswith("supported mechanisms:"):
        return "no_login"
    if state.startswith("AUTH") and not _PASSING_LOGIN.search(low):
        return "credentials" if "sasl" in low else "closed"
    if "resolve" in low:
        return "unresolved"
    if "refused" in low:
        return "refused"
    if "disconnected" in low or "closed" in low:
        return "closed"
    return "unknown"
