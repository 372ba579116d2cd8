"""Certificates that cannot be verified, as Kafka's client meets them: what is wrong is said."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.connectivity import reach
from headrace.streams.kafka.port_check import check_certificate
from tests.support.certificates import Authority, showing


def refused(certificate: Path, ca: Path) -> str:
    """What is said of a broker that shows this certificate."""
    with showing(certificate) as address:
        settings = {
            "bootstrap.servers": address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
        }
        with pytest.raises(AccessError) as raised:
            reach(settings, within_s=10)
    said = str(raised.value)
    begin = f"the certificate of the broker {address} cannot be verified: "
    assert said.startswith(begin)
    return said.removeprefix(begin)


def test_an_expired_certificate_is_no_wrong_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old = authority.signed("localhost", left=-timedelta(days=1))
    said = refused(old, authority.ca)
    assert "has expired" in said
    assert "ssl.ca.location" not in said
    assert "bootstrap.servers" not in said


def test_a_certificate_for_another_name_is_no_wrong_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    said = refused(authority.signed("kafka-1"), authority.ca)
    assert "it is not for the name localhost; name the broker as it does in bootstrap" in said
    assert "ssl.ca.location" not in said


def test_a_certificate_of_another_authority_is_no_wrong_name(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    said = refused(authority.signed("localhost"), other.ca)
    assert said.startswith("no trusted authority has signed it; set ssl.ca.location")
    assert "bootstrap.servers" not in said


def test_a_look_trusts_what_the_settings_say(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with showing(authority.signed("kafka-1")) as address:
        pem = {"ssl.ca.pem": authority.ca.read_text()}
        found = check_certificate(address, pem)
        assert found is not None
        assert "not for the name localhost" in found.reason
        any_name = {**pem, "ssl.endpoint.identification.algorithm": "none"}
        assert check_certificate(address, any_name) is None
        found = check_certificate(address, {})
        assert found is not None
        assert "no trusted authority" in found.reason
    assert check_certificate("localhost:1", pem) is None
    assert check_certificate("localhost:1", {"ssl.ca.location": "/nowhere.pem"}) is None
