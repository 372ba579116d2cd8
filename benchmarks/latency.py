"""End-to-end latency: from the send of a record to the committed output of the application.

``python -m benchmarks.latency``: a steady stream of records, an application under exactly-once, and
a consumer that reads only what is committed, all on one machine, so that one clock measures both
ends.
"""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import orjson
from confluent_kafka import Consumer, Producer
from rich.console import Console

from benchmarks.measure.cluster import Cluster, cluster
from benchmarks.measure.processes import Service
from benchmarks.report import latency_table
from benchmarks.results import Latency

KEYS = 1000
WARM_UP_S = 3.0
DRAIN_S = 3.0
UNCACHED = ("statestore.cache.max.bytes=0",)


class Feed:
    """Sends documents with the time of their sending at a steady rate, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, per_s: int, seconds: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic
        self._per_s = per_s
        self._seconds = seconds
        self.sent = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        begun = time.monotonic()
        count = int(self._per_s * self._seconds)
        while self.sent < count:
            due = min(count, int((time.monotonic() - begun) * self._per_s))
            for number in range(self.sent, due):
                value = b'{"paid":true,"price":%d,"quantity":1,"user":"user"}' % time.monotonic_ns()
                produce(self._topic, value, b'"key-%04d"' % (number % KEYS))
            self.sent = due
            poll(0.0005)
        self._producer.flush(10)


def _latencies(
    place: Cluster, topology: str, per_s: int, seconds: float, options: list[str]
) -> list[float]:
    """Run one application; returns latencies in milliseconds, in the order of the output."""
    name = f"bench-latency-{secrets.token_hex(3)}"
    source, output = f"{name}-in", f"{name}-output"
    place.create(source, output, partitions=1)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
        service = Service(
            topology,
            bootstrap=place.bootstrap,
            run=name,
            source=name,
            state=Path(state),
            options=options,
        )
        service.wait_for("running")
        consumer = Consumer(
            {
                "bootstrap.servers": place.bootstrap,
                "group.id": f"{name}-check",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 2,
            }
        )
        consumer.subscribe([output])
        feed = Feed(place.bootstrap, source, per_s, seconds + WARM_UP_S)
        feed.thread.start()
        result: list[float] = []
        count = int(per_s * (seconds + WARM_UP_S))
        deadline = time.monotonic() + seconds + WARM_UP_S + DRAIN_S
        while len(result) < count and time.monotonic() < deadline:
            # A batch call waits until it is full or times out; that would be measured too.
            first = consumer.poll(0.05)
            for message in [first, *consumer.consume(1000, 0)] if first is not None else []:
                document = orjson.loads(message.value() or b"null")
                sent_ns = document.get("total") or document["price"]
                result.append((time.monotonic_ns() - sent_ns) / 1e6)
        consumer.close()
        service.stop()
    place.delete(name)
    if len(result) != feed.sent:
        raise click.ClickException(f"{topology}: {len(result)} of {feed.sent} records came out")
    return result[int(per_s * WARM_UP_S) :]


def measured(place: Cluster, rate: int, seconds: float, extra: Sequence[str] = ()) -> list[Latency]:
    """Measure the latency of a stateless and of a stateful application.

    Args:
        place: the cluster.
        rate: records per second.
        seconds: how long, after a warm-up.
        extra: settings of the application, as name=value.
    """
    options = [word for item in (*UNCACHED, *extra) for word in ("--set", item)]
    found = []
    for topology in ("stateless", "last_value"):
        ms = _latencies(place, topology, rate, seconds, options)
        cuts = statistics.quantiles(ms, n=1000, method="inclusive")
        found.append(Latency(topology, rate, cuts[499], cuts[899], cuts[989], cuts[998], max(ms)))
    return found


@click.command()
@click.option("--bootstrap", help="A cluster to run on; by default a broker of one's own.")
@click.option("--rate", default=1000, show_default=True, help="Records per second.")
@click.option("--seconds", default=20, show_default=True, help="How long to measure.")
@click.option("--set", "extra", multiple=True, help="A setting of the application, as name=value.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(
    bootstrap: str | None, rate: int, seconds: int, extra: tuple[str, ...], path: Path | None
) -> None:
    """Measure the latency of a stateless and of a stateful application."""
    with cluster(bootstrap) as place:
        found = measured(place, rate, seconds, extra)
    Console().print(latency_table(found))
    if path is not None:
        path.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
