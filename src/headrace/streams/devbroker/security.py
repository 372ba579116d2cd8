"""What makes a dev broker a secured one: an authority of its own, certificates, and users.

All of it lives in `secure/` of the broker's directory, made once and for this machine alone.
Clients come over TLS and prove who they are by SCRAM; nodes know each other by their certificate.
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
"""The user that may do everything, whom the nodes use too."""
MECHANISM = "SCRAM-SHA-512"
NODE_PRINCIPAL = "User:CN=headrace-dev-broker"

_NODE_NAME = "headrace-dev-broker"
_HOSTS, _ADDRESSES = ("localhost",), ("127.0.0.1", "::1")
_VALID_FOR = timedelta(days=3650)
_DIRECTORY, _AUTHORITY, _NODE = "secure", "ca.pem", "node.pem"


@dataclass(frozen=True, slots=True)
class Security:
    """The files of one broker's directory."""

    home: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.home / _DIRECTORY / _AUTHORITY

    @property
    def node(self) -> Path:
        """The nodes' private key and certificate."""
        return self.home / _DIRECTORY / _NODE

    def prepare(self) -> None:
        """Make what is missing.

        Raises:
            CertificatesUnavailableError: the package that makes certificates is not installed.
        """
        if not self.node.exists():
            _need_certificates()  # before anything is there that the next start would not know
        self.authority.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.node.exists():
            _write_certificates(self.authority, self.node)
        self.password(ADMIN)

    def password(self, user: str) -> str:
        """The user's password, which is made with the first call."""
        path = self._password_file(user)
        if not path.exists():
            _write_private(path, secrets.token_urlsafe(18).encode())
        return path.read_text()

    def knows(self, user: str) -> bool:
        """Whether there is such a user."""
        return self._password_file(user).exists()

    def client_settings(self, user: str, bootstrap: str) -> dict[str, str]:
        """What a client needs that connects as this user."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.password(user),
            "ssl.ca.location": str(self.authority),
        }

    def write_settings(self, user: str, bootstrap: str) -> Path:
        """Write these settings where `--config` can read them; returns the file."""
        path = self.home / f"{user}.toml"
        _write_private(path, _toml(self.client_settings(user, bootstrap)).encode())
        return path

    def _password_file(self, user: str) -> Path:
        return self.home / _DIRECTORY / f"{user}.password"


def _toml(settings: Mapping[str, str]) -> str:
    # A JSON string is one of TOML too. The names have quotes, as dots would make tables of them.
    return "".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in settings.items())


def _write_private(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.replace(path)


def _need_certificates() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise CertificatesUnavailableError(
            "a secured broker needs certificates, and the package that makes them is missing.\n"
            "Install it: pip install cryptography"
        )


def _write_certificates(authority: Path, node: Path) -> None:
    """Make an authority and one certificate of it, and forget the authority's key."""
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
