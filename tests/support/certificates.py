"""Certificates of any kind of fault, and ports that show them."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates; its own is in the file `ca`."""

    def __init__(self, home: Path, name: str = "authority") -> None:
        self._home = home
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key.public_key(), timedelta(days=2))
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca = home / f"{name}.pem"
        self.ca.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, left: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        made = made.public_key(key).serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(days=9)).not_valid_after(now + left)

    def signed(self, host: str, *, left: timedelta = timedelta(days=1)) -> Path:
        """A file with a key and its certificate for a host, valid for so long from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
        name = (
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
        )
        made = self._builder(subject, key.public_key(), left)
        made = made.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        file = self._home / f"{host}.pem"
        private = key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + made.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        return file


@contextmanager
def showing(certificate: Path) -> Iterator[str]:
    """A port that speaks TLS with this certificate, and nothing more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def shake(one: socket.socket) -> None:
        with suppress(OSError), one, context.wrap_socket(one, server_side=True) as there:
            there.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=shake, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"localhost:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
