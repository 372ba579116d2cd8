"""Security of a dev broker: a certificate authority, certificates, and passwords.

All files are in `secure/` of the broker's directory, created once and valid only for this machine.
Clients connect with TLS and authenticate with SCRAM; nodes authenticate with their certificate.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from headrace.streams.devbroker.errors import CertificatesUnavailableError

ADMIN = "admin"
"""User with all permissions, which the nodes use, too."""
MECHANISM = "SCRAM-SHA-512"
NODE_PRINCIPAL = "User:CN=headrace-dev-broker"

_NODE_NAME = "headrace-dev-broker"
_HOSTS, _ADDRESSES = ("localhost",), ("127.0.0.1", "::1")
_VALID_FOR = timedelta(days=3650)
_DIRECTORY, _AUTHORITY, _NODE = "secure", "ca.pem", "node.pem"


@dataclass(frozen=True, slots=True)
class Security:
    """Security files in a broker's directory."""

    home: Path

    @property
    def authority(self) -> Path:
        return self.home / _DIRECTORY / _AUTHORITY

    @property
    def node(self) -> Path:
        """Path of the nodes' private key and certificate."""
        return self.home / _DIRECTORY / _NODE

    def prepare(self) -> None:
        if not self.node.exists():
            _require_cryptography()  # before anything is created
        self.authority.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.node.exists():
            _write_certificates(self.authority, self.node)
        self.password(ADMIN)

    def password(self, user: str) -> str:
        """Return the user's password, which the first call creates."""
        path = self._password_file(user)
        if not path.exists():
            _write_private(path, secrets.token_urlsafe(18).encode())
        return path.read_text()

    def knows(self, user: str) -> bool:
        return self._password_file(user).exists()

    def client_settings(self, user: str, bootstrap: str) -> dict[str, str]:
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.password(user),
            "ssl.ca.location": str(self.authority),
        }

    def write_settings(self, user: str, bootstrap: str) -> Path:
        path = self.home / f"{user}.toml"
        _write_private(path, _toml(self.client_settings(user, bootstrap)).encode())
        return path

    def _password_file(self, user: str) -> Path:
        return self.home / _DIRECTORY / f"{user}.password"


def _toml(settings: Mapping[str, str]) -> str:
    # JSON strings are valid TOML. Names are quoted, because unquoted dots would create tables.
    return "".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in settings.items())


def _write_private(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.replace(path)


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise CertificatesUnavailableError(
            "a secured broker needs certificates, and the package that creates them is missing.\n"
            "Install it: pip install cryptography"
        )


def _write_certificates(authority: Path, node: Path) -> None:
    """Create an authority and a certificate signed by it, and discard the authority's key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    begin = datetime.now(UTC) - timedelta(days=1)
    issuer = named("headrace dev broker authority")
    issuer_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def certificate(subject: x509.Name, of: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + _VALID_FOR)
        )

    own = certificate(issuer, issuer_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    hosts = [x509.DNSName(host) for host in _HOSTS]
    addresses = [x509.IPAddress(ip_address(address)) for address in _ADDRESSES]
    of_node = certificate(named(_NODE_NAME), key).add_extension(
        x509.SubjectAlternativeName([*hosts, *addresses]), critical=False
    )
    pem = serialization.Encoding.PEM
    signed = [b.sign(issuer_key, hashes.SHA256()).public_bytes(pem) for b in (own, of_node)]
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_private(authority, signed[0])
    _write_private(node, secret + signed[1] + signed[0])
