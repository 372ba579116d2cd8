"""Enrichment by HTTP: the weather at the destination of each parcel.

It shows `map_async`: a hundred calls in flight, retries, and the result for a parcel whose
call finally fails. `python -m examples.enrich_by_http` is a service for it.

    headrace topics create parcels-to-send parcels-with-weather
    headrace run examples.enrich_by_http:app

It reads and writes one topic each. Keys are text, values are JSON:

    parcels-to-send       parcel  {"city": "Rome"}
    parcels-with-weather  parcel  {"city": "Rome", "weather": "sunny"}
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from headrace import Call, KafkaStreams, Retry, StreamsBuilder, Topology, serdes

SERVICE = os.environ.get("WEATHER_URL", "http://localhost:8081")
SETTINGS = {
    "application.id": "enrich-by-http",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}
Parcel = dict[str, str | None]


def with_weather(parcel: Parcel, call: Call) -> Parcel:
    """Call the service, in a thread. The key identifies a repeated call."""
    url = f"{SERVICE}/{quote(str(parcel['city']))}"
    request = Request(url, headers={"Idempotency-Key": call.key})
    with urlopen(request, timeout=2) as answer:
        return {**parcel, "weather": json.load(answer)}


def enrich_by_http(
    parcels: str = "parcels-to-send", enriched: str = "parcels-with-weather"
) -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    stream = builder.stream(parcels, key=serdes.string, value=serdes.json)
    stream.map_async(
        with_weather,
        concurrency=100,
        timeout=timedelta(seconds=7),
        retry=Retry(attempts=3),
        on_error=lambda parcel, _: {**parcel, "weather": None},
        name="weather",
    ).to(enriched, key=serdes.string, value=serdes.json)
    return builder.build()


class Weather(BaseHTTPRequestHandler):
    """The service: it is sunny in cities whose names have an even number of letters."""

    def do_GET(self) -> None:
        city = unquote(self.path[1:])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps("rainy" if len(city) % 2 else "sunny").encode())


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(enrich_by_http(), SETTINGS)


if __name__ == "__main__":
    ThreadingHTTPServer(("localhost", 8081), Weather).serve_forever()
