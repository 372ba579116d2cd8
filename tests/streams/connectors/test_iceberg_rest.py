"""A REST catalog that says nothing is given up; what is loaded is what pyiceberg would load."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.streams.connectors.iceberg import IcebergSink, load_bounded
from headrace.topology import SinkUnavailableError, SinkUnusableError

pytest.importorskip("pyiceberg")

SHORT = timedelta(milliseconds=300)
GIVES_UP_S = 20.0


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of one that takes connections, says nothing, and cuts them after a long time."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def take() -> None:
        with suppress(OSError):
            while True:
                taken.append(listener.accept()[0])

    def cut() -> None:
        listener.close()
        for connection in taken:
            connection.close()

    threading.Thread(target=take, daemon=True).start()
    timer = threading.Timer(GIVES_UP_S, cut)
    timer.start()
    yield listener.getsockname()[1]
    timer.cancel()
    cut()


class FirstAnswer(BaseHTTPRequestHandler):
    """Says how it is set up, and then nothing more."""

    held = threading.Event()
    authorizations: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        if "/v1/config" not in self.path:
            self.held.wait(GIVES_UP_S)
            return
        self.authorizations.append(self.headers["authorization"])
        body = b'{"defaults": {}, "overrides": {}}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def falls_silent() -> Iterator[int]:
    FirstAnswer.held.clear()
    FirstAnswer.authorizations.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), FirstAnswer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    FirstAnswer.held.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("server", ["silent", "falls_silent"])
@pytest.mark.parametrize("told", ["type", "address"])
def test_an_answer_is_not_waited_for_without_end(
    server: str, told: str, request: pytest.FixtureRequest
) -> None:
    uri = f"http://127.0.0.1:{request.getfixturevalue(server)}"
    catalog = {"uri": uri, **({"type": "rest"} if told == "type" else {})}
    sink = IcebergSink(catalog, "shop.orders", {"item": str}, timeout=SHORT)
    with pytest.raises(SinkUnavailableError, match=r"(?i)timed out"):
        sink.open("app/keep")


def test_other_catalogs_are_loaded_as_they_are(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "name": "mine"}
    catalog = load_bounded(properties, 1.0)
    assert (type(catalog).__name__, catalog.name) == ("SqlCatalog", "mine")
    catalog.close()


def test_a_name_of_the_configuration(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://127.0.0.1:{silent}")
    sink = IcebergSink("lake", "shop.orders", {"item": str}, timeout=SHORT)
    with pytest.raises(SinkUnavailableError, match=r"(?i)timed out"):
        sink.open("app/keep")


def test_what_is_no_catalog_is_said() -> None:
    with pytest.raises(ValueError, match=r"_NOWHERE__URI"):
        load_bounded("nowhere", 1.0)


def test_the_line_end_of_a_token_is_none_of_it(falls_silent: int) -> None:
    catalog = {"type": "rest", "uri": f"http://127.0.0.1:{falls_silent}", "token": "hunter2\n"}
    load_bounded(catalog, 1.0).close()
    assert set(FirstAnswer.authorizations) == {"Bearer hunter2"}


@pytest.mark.parametrize("name", ["token", "credential"])
def test_what_no_header_can_hold_is_refused_and_not_shown(name: str) -> None:
    catalog = {"type": "rest", "uri": "http://127.0.0.1:9", name: "hunter2\nhunter2"}
    sink = IcebergSink(catalog, "shop.orders", {"item": str}, timeout=SHORT)
    with pytest.raises(SinkUnusableError, match=f"its {name} has line ends") as refused:
        sink.open("app/keep")
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
