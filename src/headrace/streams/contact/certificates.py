"""What is wrong with a certificate, by OpenSSL's code: what is said of it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


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
