"""The page of `headrace dev`: where it is, and when a browser is shown it."""

from __future__ import annotations

import http.server
import socket
import threading
from urllib.parse import urlsplit

import pytest

from headrace.streams.cli import dev as module
from headrace.streams.cli.dev import DevDashboard, _dashboard, missing
from tests.support.processes import wait_until


def port_of(page: DevDashboard) -> int:
    return int(urlsplit(page.url).port or 0)


def test_a_port_that_is_taken_gives_way_to_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(module, "PORT", number)
        page = DevDashboard(None)
        assert port_of(page) not in (0, number)
    assert port_of(DevDashboard(None)) == number
    assert port_of(DevDashboard(0)) not in (0, number)
    # One that was asked for is taken as it is: whoever serves there says that it is taken.
    assert DevDashboard(1234).options == ("--http", "127.0.0.1:1234", "--queries")


def test_a_browser_is_shown_the_page_once_it_is_there() -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    page, shown = DevDashboard(0), list[str]()
    page.open_soon(shown.append)
    with http.server.HTTPServer(("127.0.0.1", port_of(page)), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        wait_until(lambda: shown == [page.url], what="the page")
        server.shutdown()


def test_without_what_it_needs_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing() is None
    monkeypatch.setattr(module, "NEEDED", ("starlette", "no_such_library"))
    assert _dashboard(None) is None
    assert capsys.readouterr().out == (
        "No dashboard: it requires no_such_library. Run: pip install 'headrace[web]'\n"
    )
