"""Ports that take connections and are no Kafka brokers, or not such as the settings say."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.streams.devbroker import DevBroker
from headrace.streams.errors import FatalClientError, StopRequestedError
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.clients import read_failure
from headrace.streams.kafka.connectivity import BrokerMonitor, reach
from headrace.streams.kafka.port_check import ServerKind, advice_for, check_port

Talk = Callable[[socket.socket], None]


@contextmanager
def serving(talk: Talk) -> Iterator[str]:
    """A port at which each connection is talked with."""
    with socket.create_server(("localhost", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    one, _ = server.accept()
                    threading.Thread(target=_talked, args=(talk, one), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"localhost:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def _talked(talk: Talk, one: socket.socket) -> None:
    with suppress(OSError), one:
        talk(one)


def says(words: bytes) -> Talk:
    def talk(one: socket.socket) -> None:
        one.recv(1000)
        one.sendall(words)
        time.sleep(0.2)

    return talk


def is_silent(one: socket.socket) -> None:
    while one.recv(1000):
        pass


def closes(one: socket.socket) -> None:
    one.recv(1000)


@contextmanager
def web_server() -> Iterator[str]:
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("localhost", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def one_of(kind: str) -> Iterator[str]:
    """A port of a kind."""
    if kind == "web server":
        with web_server() as address:
            yield address
        return
    talks = {
        "http": says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "ssh": says(b"SSH-2.0-OpenSSH_9.2\r\n"),
        "tls": says(b"\x15\x03\x03\x00\x02\x02\x46"),
        "silent": is_silent,
        "closes": closes,
    }
    with serving(talks[kind]) as address:
        yield address


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("web server", "http"),
        ("http", "http"),
        ("ssh", "other"),
        ("tls", "tls"),
        ("silent", "silent"),
        ("closes", "closes"),
    ],
)
def test_a_look_says_what_is_there(kind: str, seen: ServerKind) -> None:
    with one_of(kind) as address:
        assert check_port(address, timeout_s=0.5) == seen


@pytest.mark.parametrize("address", ["localhost:1", "no-such-host.invalid:1", "localhost", ":", ""])
def test_where_nothing_is_a_look_sees_nothing(address: str) -> None:
    assert check_port(address, timeout_s=0.5) == "nothing"


def test_a_server_with_tls_is_known_by_its_handshake(tmp_path: Path) -> None:
    key, made = tmp_path / "key.pem", tmp_path / "made.pem"
    make = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {made} -subj /CN=localhost"
    )
    subprocess.run(make.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)

    def talk(one: socket.socket) -> None:
        with context.wrap_socket(one, server_side=True) as inside:
            inside.recv(1000)

    with serving(talk) as address:
        assert check_port(address) == "tls"


def test_brokers_are_known_with_tls_and_without(broker: str, secured: DevBroker) -> None:
    assert check_port(broker) == check_port(f"PLAINTEXT://{broker}") == "kafka"
    assert check_port(str(secured.settings()["bootstrap.servers"])) == "tls"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "protocol", "said"),
    [
        (
            "web server",
            "PLAINTEXT",
            "a web server answers, not a Kafka broker; correct bootstra",
        ),
        (
            "web server",
            "SSL",
            "a web server answers, not a Kafka broker; correct bootstrap.",
        ),
        (
            "http",
            "PLAINTEXT",
            "a web server answers, not a Kafka broker; correct bootstrap.",
        ),
        ("ssh", "PLAINTEXT", "the server is not a Kafka broker; correct bootstrap.servers"),
        ("tls", "PLAINTEXT", "the server uses TLS; set security.protocol to SSL or SASL_SSL"),
        ("silent", "PLAINTEXT", "connections are accepted and nothing is sent; check that a Kafka"),
        (
            "closes",
            "PLAINTEXT",
            "connections are accepted and closed; it may expect another secur",
        ),
    ],
)
def test_a_command_says_what_was_seen(kind: str, protocol: str, said: str) -> None:
    with one_of(kind) as address, pytest.raises(FatalClientError) as raised:
        reach({"bootstrap.servers": address, "security.protocol": protocol}, within_s=0.5)
    assert said in str(raised.value)
    for misleading in ("nothing answers", "firewall", "receive.message.max.bytes"):
        assert misleading not in str(raised.value)


@pytest.mark.slow
def test_an_application_that_waits_says_what_was_seen() -> None:
    waits = "brokers_not_reached"
    with one_of("silent") as address, capture_logs() as logs:
        brokers = BrokerMonitor({"bootstrap.servers": address})
        with pytest.raises(StopRequestedError):
            brokers.reach(lambda: any(entry["event"] == waits for entry in logs))
    (event,) = [entry for entry in logs if entry["event"] == waits]
    assert event["reason"] == f"at {address} connections are accepted and nothing is sent"
    assert "responds" in event["advice"]


def test_a_broker_without_tls_says_so_to_one_who_expects_it(broker: str) -> None:
    with pytest.raises(FatalClientError, match="a Kafka broker answers, without TLS; set security"):
        reach({"bootstrap.servers": broker, "security.protocol": "SSL"}, within_s=1)


def test_a_broker_with_tls_says_so_to_one_who_expects_none(secured: DevBroker) -> None:
    wanted = {**secured.settings(), "security.protocol": "PLAINTEXT"}
    with pytest.raises(FatalClientError, match=r"the server uses TLS; set security[.]protocol"):
        reach(wanted, within_s=1)


def test_a_broker_that_asks_for_no_login_is_not_a_wrong_password(broker: str) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "guessed"}
    wanted = {"bootstrap.servers": broker, "security.protocol": "SASL_PLAINTEXT", **login}
    with pytest.raises(AccessError, match=r"it requires no login: set security[.]protocol"):
        reach(wanted, within_s=3)


@pytest.mark.parametrize(
    ("seen", "protocol", "advice"),
    [
        ("tls", "SASL_PLAINTEXT", "SASL_SSL"),
        ("tls", "sasl_ssl", "settings ssl.*"),
        ("kafka", "ssl", "PLAINTEXT"),
        ("kafka", "plaintext", "security.protocol=SASL_PLAINTEXT"),
        ("kafka", "sasl_plaintext", "sasl.*"),
        ("closes", "PLAINTEXT", "another security.protocol"),
        ("nothing", "SSL", None),
    ],
)
def test_the_advice_is_of_what_is_seen_and_what_is_set(
    seen: ServerKind, protocol: str, advice: str | None
) -> None:
    found = advice_for(seen, protocol)
    assert found is None if advice is None else advice in str(found)


def test_an_answer_of_no_broker_is_not_told_as_a_large_one() -> None:
    failure = read_failure(
        "localhost:80/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000): "
        "increase receive.message.max.bytes (after 5ms in state APIVERSION_QUERY)"
    )
    assert failure is not None
    assert (failure.kind, failure.reason) == (
        "not_kafka",
        "a web server answers, not a Kafka broker",
    )


@pytest.mark.parametrize(
    "guess",
    [
        "probably due to broker version < 0.10 (see api.version.request configuration)",
        "might be caused by broker version < 0.10 (see api.version.request)",
    ],
)
def test_a_guess_at_brokers_of_old_is_not_repeated(guess: str) -> None:
    failed = "ApiVersionRequest failed: Local: Timed out"
    line = f"localhost:80/bootstrap: {failed}: {guess} (after 10000ms in state APIVERSION_QUERY)"
    failure = read_failure(line)
    assert failure is not None
    assert failure.reason == failed


@pytest.mark.parametrize("state", ["", " (after 0ms in state TRY_CONNECT)"])
def test_who_does_not_connect_has_tried_to_connect_in_whatever_state(state: str) -> None:
    failure = read_failure(
        f"kafka:9092/bootstrap: Connect to ipv4#10.0.0.7:9092 failed: Connection refused{state}"
    )
    assert failure is not None
    assert (failure.tried, failure.kind) == ("to connect", "refused")
