"""Settings with every secret that a client may have, of which the secured broker takes some."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.streams.config.secrets import SECRET_NAMES

CANARY = "c4n4ry"
KEY_PASSWORD = f"{CANARY}-of-the-key"


def client_key() -> tuple[str, str]:
    """A private key behind `KEY_PASSWORD` and its certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    guard = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, guard).decode()
    return text, certificate.public_bytes(pem).decode()


def secret_settings(home: Path, *, key_in_file: bool) -> tuple[dict[str, str], list[str]]:
    """Settings beside those of a user of the secured broker, and what of them nobody may see.

    The key is read by each client, which needs the password for it.
    """
    key, certificate = client_key()
    settings = {name: f"{CANARY}-{name}" for name in SECRET_NAMES - {"sasl.password"}}
    settings["ssl.key.password"] = KEY_PASSWORD
    if key_in_file:
        del settings["ssl.key.pem"]
        for name, text in (("key", key), ("certificate", certificate)):
            path = home / f"client.{name}"
            path.write_text(text)
            settings[f"ssl.{name}.location"] = str(path)
    else:
        settings |= {"ssl.key.pem": key, "ssl.certificate.pem": certificate}
    return settings, [CANARY, key.splitlines()[2]]


def write_toml(path: Path, settings: Mapping[str, Any]) -> Path:
    """Write what `--config` reads."""
    path.write_text("".join(f'"{n}" = {json.dumps(value)}\n' for n, value in settings.items()))
    return path
