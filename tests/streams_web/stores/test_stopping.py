"""Those whose requests wait when the server stops are told so, and nothing is said to be wrong."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace import KafkaStreams, StreamsBuilder, TopologyTestDriver, serdes
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from tests.support.processes import wait_until
from tests.support.served_changes import ServedChanges
from tests.support.snapshots import application_snapshot

PATIENCE_S = 30.0
SAID = {"error": "this host stops. Retry in a moment, or query another host"}


class Asking(threading.Thread):
    """A client that waits for its answer."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._port, self._path = port, path
        self.answers: list[tuple[int, str | None, Any]] = []
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with closing(connection):
            connection.request("GET", self._path)
            answer = connection.getresponse()
            kind, data = answer.headers["Content-Type"], answer.read()
            self.answers.append((answer.status, kind, data.decode()))

    def told(self) -> tuple[int, str | None, Any]:
        self.join(60)
        (code, kind, text) = self.answers[0]
        return code, kind, json.loads(text)


class Scene:
    """An application whose stores are served."""

    def __init__(self, path: Path) -> None:
        builder = StreamsBuilder()
        words = builder.stream("words", key=serdes.string, value=serdes.string)
        words.group_by_key().count(store="counts").to_stream().to("out")
        built = builder.build()
        settings = {
            "application.id": "asked", "bootstrap.servers": "nowhere:1", "state.dir": str(path)
        }  # fmt: skip
        self.driver = TopologyTestDriver(built, settings, state_dir=path, commit="manual")
        self.driver.input("words").send("k", "")
        self.driver.commit()
        self.queries = KafkaStreams(built, settings).queries()
        self.asked = 0
        self.blocked = threading.Event()
        self.is_blocked = False
        health = HealthSnapshot(
            snapshot=application_snapshot(), turned_s=1.0, is_loaded=True, has_failed=False
        )
        self.server = HttpServer(lambda: health, "0", log=EventLog(), queries=self._queries)
        self.port = self.server.address.port

    def _queries(self) -> Any:
        self.asked += 1
        if self.is_blocked:
            self.blocked.wait(PATIENCE_S)
        return self.queries

    def close(self) -> None:
        self.blocked.set()
        self.server.close()
        self.queries.close()
        self.driver.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def test_who_waits_for_a_position_is_told_that_the_host_stops(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/api/stores/counts/k?wait=30s&min_position=0:9999999"
    asking = [Asking(scene.port, path) for _ in range(5)]
    wait_until(lambda: scene.asked == 5, what="all of them to wait")
    begun_s = time.monotonic()
    scene.server.close()
    for one in asking:
        assert one.told() == (503, "application/json", SAID)
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert caplog.text == ""
    # The threads that answered wait no longer, either.
    wait_until(lambda: not _waiting(), seconds=PATIENCE_S / 2, what="no thread of a question")


def _waiting() -> list[str]:
    return [one.name for one in threading.enumerate() if "AnyIO" in one.name]


def test_whoever_waits_for_something_else_is_told_so_too(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.is_blocked = True
    asking = [Asking(scene.port, f"/api/stores/counts{path}") for path in ("/k", "/changes")]
    wait_until(lambda: scene.asked == 2, what="both to wait")
    scene.server.close()
    for one in asking:
        assert one.told() == (503, "application/json", SAID)
    assert caplog.text == ""


def test_who_has_sent_half_a_body_is_told_so_too(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /api/stores/counts/get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
    with socket.create_connection(("127.0.0.1", scene.port), timeout=60) as client:
        client.sendall(head + b"Expect: 100-continue\r\n\r\n")
        # The server asks for the body once whoever answers waits for it.
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(b'{"keys": [')
        scene.server.close()
        answer = b"".join(iter(lambda: client.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == SAID
    assert caplog.text == ""


def test_a_client_that_reads_no_changes_is_cut_off_and_nothing_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = ServedChanges(monkeypatch, tmp_path)
    with closing(scene), socket.create_connection(("127.0.0.1", scene.server.address.port)) as one:
        one.sendall(b"GET /api/stores/counts/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: bool(scene.memory.open), what="its reader")
        # More than the buffers of the connection hold.
        for number in range(100):
            scene.write((0, "x" * 100_000, number))
        connections = scene.server._server._limits._open
        wait_until(lambda: any(c._unread for c in list(connections)), what="a full connection")
        scene.server.close()
    assert caplog.text == ""
