"""A trust store for the Java of a wheel, with the authorities that this machine trusts.

A Java installed by the system knows the system's authorities, those of a company's proxy
included; one that came as a wheel knows only its own list. So the authorities that Python
trusts are written as a Java key store (format JKS, version 2: certificates only).
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

_PASSWORD = "changeit"  # noqa: S105 - Java's own default; the content is public
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def trust_options(directory: Path) -> list[str]:
    """Write the store into `directory` and return the Java options that name it.

    Returns no options where Python knows no authorities: then Java's own list is the better one.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    path = directory / "trust.jks"
    path.write_bytes(_jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def _jks(certificates: list[bytes]) -> bytes:
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _utf(f"ca-{number}")
        body += struct.pack(">Q", 0) + _utf("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    seal = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(seal, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
