"""examples/enrich_by_http.py, with its service in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from examples import enrich_by_http
from headrace.streams import TopologyTestDriver


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Quiet(enrich_by_http.Weather):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("localhost", 0), Quiet)
    monkeypatch.setattr(enrich_by_http, "SERVICE", f"http://localhost:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("service")
def test_parcels_get_the_weather_of_their_cities() -> None:
    with TopologyTestDriver(enrich_by_http.enrich_by_http()) as driver:
        driver.input("parcels-to-send").send_many(
            [("p1", {"city": "Rome"}), ("p2", {"city": "Köln am Rhein"})]
        )
        found = driver.output("parcels-with-weather").as_dict()
    assert found["p1"] == {"city": "Rome", "weather": "sunny"}
    assert found["p2"] == {"city": "Köln am Rhein", "weather": "rainy"}


def test_a_parcel_goes_on_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrich_by_http, "SERVICE", "http://localhost:1")
    with TopologyTestDriver(enrich_by_http.enrich_by_http()) as driver:
        driver.input("parcels-to-send").send("p1", {"city": "Rome"})
        found = driver.output("parcels-with-weather").as_dict()
    assert found == {"p1": {"city": "Rome", "weather": None}}
