"""End-to-end latency, from sending a record to its committed output.

``python -m benchmarks.latency`` runs a steady load, an application with exactly-once, and a
consumer with `read_committed` on one machine, so that one clock measures both ends. Other settings,
another checkout of Headrace and Kafka Streams can run in turns with it. The output has percentiles
of the latency in milliseconds, commits per second, and the CPU of the application and the broker.
"""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import orjson
from confluent_kafka import Consumer, Producer
from rich.console import Console

from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.usage import resource_usage
from benchmarks.peers.commands import commands, headrace
from benchmarks.peers.peer import RunSpec, Variant
from benchmarks.report import latency_table
from benchmarks.results import Latency
from benchmarks.throughput import running

KEYS = 1000
APPLICATIONS = ("stateless", "last_value")
START_S = 60.0
WARM_UP_S = 3.0
BROKER_WARM_UP_S = 40.0
"""Duration of a run before the others, in which the JVM of a temporary broker compiles."""
DRAIN_S = 20.0
_PAUSE_S = 0.0005
"""Pause after each batch of due records."""
EVERY_UPDATE = Variant("headrace", caches=False)


@dataclass(frozen=True, slots=True)
class Runner:
    """Application that is measured.

    Args:
        name: name in tables.
        command: returns the command that starts it.
    """

    name: str
    command: Callable[[RunSpec], list[str]]


def headrace_runner(settings: Sequence[str] = (), checkout: Path | None = None) -> Runner:
    """Return the runner of Headrace.

    Args:
        settings: settings of the application, as name=value.
        checkout: another checkout with an environment in `.venv`; None for this one.
    """
    options = [option for item in settings for option in ("--set", item)]
    python = sys.executable if checkout is None else str(checkout / ".venv" / "bin" / "python")

    def command(spec: RunSpec) -> list[str]:
        return [python, *headrace(EVERY_UPDATE, spec)[1:], *options]

    name = "headrace" if checkout is None else f"headrace of {checkout}"
    return Runner(" ".join((name, *settings)), command)


def kafka_streams(report: Callable[[str], None]) -> list[Runner]:
    """Return the runner of Kafka Streams, if it is available."""
    found = commands(report, ["kafka-streams"]).get("kafka-streams")
    if found is None:
        return []
    return [Runner("kafka-streams", lambda spec: found(EVERY_UPDATE, spec))]


class LoadGenerator:
    """Sends documents with their send time at a steady rate, in a separate thread."""

    def __init__(self, bootstrap: str, topic: str, per_s: int, seconds: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic
        self._per_s = per_s
        self._seconds = seconds
        self.sent = 0
        self.missing = int(per_s * seconds)
        """Number of records whose output has not been read."""
        self.thread = threading.Thread(target=self._run, daemon=True)

    def probe(self) -> None:
        """Send a record that is not measured; its output shows that the application runs."""
        self._producer.produce(self._topic, _document(time.monotonic_ns()), b'"probe"')
        self._producer.flush(10)

    def _run(self) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        begun = time.monotonic()
        count = int(self._per_s * self._seconds)
        while self.sent < count:
            due = min(count, int((time.monotonic() - begun) * self._per_s))
            for number in range(self.sent, due):
                value = _document(time.monotonic_ns())
                produce(self._topic, value, b'"key-%04d"' % (number % KEYS))
            self.sent = due
            poll(0)
            # A poll of less than a millisecond does not wait, and would take a core from the
            # measured application.
            time.sleep(_PAUSE_S)
        self._producer.flush(10)


def _document(sent_ns: int) -> bytes:
    return b'{"paid":true,"price":%d,"quantity":1,"user":"user"}' % sent_ns


class OutputReader:
    """Reads committed records of the output, and computes their latencies."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-check",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 2,
            }
        )
        self._consumer.subscribe([topic])
        self.offset = 0
        """Offset of the last record; markers of transactions have offsets too."""

    def latencies_ms(self) -> list[float]:
        """Return the latencies of new records after a short wait; empty if there are none."""
        # A batch call waits for a full batch or a timeout, which would be measured too.
        first = self._consumer.poll(0.05)
        found = []
        for message in [first, *self._consumer.consume(1000, 0)] if first is not None else []:
            document = orjson.loads(message.value() or b"null")
            sent_ns = document.get("total") or document["price"]
            found.append((time.monotonic_ns() - sent_ns) / 1e6)
            self.offset = message.offset() or 0
        return found

    def wait_for_probe(self) -> None:
        """Wait for the output of the probe."""
        deadline = time.monotonic() + START_S
        while not self.latencies_ms():
            if time.monotonic() > deadline:
                raise click.ClickException(f"no output within {START_S:.0f} s")

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _measure(
    cluster: Cluster,
    application: str,
    runner: Runner,
    per_s: int,
    seconds: float,
    *,
    partitions: int = 1,
) -> Latency:
    """Run one application."""
    name = f"bench-latency-{secrets.token_hex(3)}"
    source, output = f"{name}-in", f"{name}-output"
    cluster.create(source, output, partitions=partitions)
    broker = [] if cluster.broker_pid is None else [cluster.broker_pid]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
        spec = RunSpec(application, cluster.bootstrap, name, name, output, Path(state))
        with running(runner.command(spec), 1) as processes:
            pids = [process.pid for process in processes]
            load = LoadGenerator(cluster.bootstrap, source, per_s, seconds + WARM_UP_S)
            load.probe()
            reader = OutputReader(cluster.bootstrap, output)
            reader.wait_for_probe()
            load.thread.start()
            begun_s = time.monotonic()
            _read_until(reader, load, begun_s + WARM_UP_S)
            at_s, offset = time.monotonic(), reader.offset
            cpu_s, broker_s = resource_usage(pids).cpu_s, resource_usage(broker).cpu_s
            ms = _read_until(reader, load, begun_s + WARM_UP_S + seconds)
            took_s = time.monotonic() - at_s
            cpu_s, broker_s = (
                resource_usage(pids).cpu_s - cpu_s,
                resource_usage(broker).cpu_s - broker_s,
            )
            markers = reader.offset - offset - len(ms)
            ms += _read_until(reader, load, time.monotonic() + DRAIN_S)
            reader.close()
    cluster.delete(name)
    if load.missing:
        raise click.ClickException(
            f"{runner.name}, {application}: {load.missing} records are missing"
        )
    cuts = statistics.quantiles(ms, n=1000, method="inclusive")
    return Latency(
        application,
        runner.name,
        per_s,
        p50=cuts[499],
        p90=cuts[899],
        p99=cuts[989],
        p999=cuts[998],
        highest=max(ms),
        commits_per_s=markers / took_s,
        cpu=cpu_s / took_s,
        broker_cpu=broker_s / took_s if broker else None,
    )


def _read_until(reader: OutputReader, load: LoadGenerator, deadline: float) -> list[float]:
    ms: list[float] = []
    while load.missing and time.monotonic() < deadline:
        found = reader.latencies_ms()
        load.missing -= len(found)
        ms += found
    return ms


def measure_latency(
    cluster: Cluster,
    rate: int,
    seconds: float,
    runners: Sequence[Runner],
    rounds: int = 1,
    *,
    applications: Sequence[str] = APPLICATIONS,
    partitions: int = 1,
    broker_warm_up_s: float = 0.0,
) -> list[Latency]:
    """Measure the latency of applications, by default a stateless and a stateful application.

    Args:
        cluster: the cluster.
        rate: records per second.
        seconds: duration after a warm-up.
        runners: applications that run in turns.
        rounds: number of rounds.
        applications: names of topologies.
        partitions: partitions of each topic.
        broker_warm_up_s: duration of a run that warms a new broker, and does not count.
    """
    found = []
    if broker_warm_up_s:
        _measure(
            cluster, applications[0], runners[0], rate, broker_warm_up_s, partitions=partitions
        )
    for application in applications:
        for number in range(rounds):
            for runner in runners if number % 2 == 0 else reversed(runners):
                one = _measure(cluster, application, runner, rate, seconds, partitions=partitions)
                found.append(one)
    return found


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--rate", default=1000, show_default=True, help="Records per second.")
@click.option("--seconds", default=20, show_default=True, help="Duration of a measurement.")
@click.option("--rounds", default=1, show_default=True, help="Number of rounds, in turns.")
@click.option("--set", "extra", multiple=True, help="Setting of the application, as name=value.")
@click.option(
    "--also-with", "others", multiple=True, help="Also run with this setting, as name=value."
)
@click.option(
    "--checkout",
    "checkouts",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Also run this checkout of Headrace, with its .venv.",
)
@click.option("--kafka-streams", "java", is_flag=True, help="Also run Kafka Streams.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
def main(
    bootstrap: str | None,
    rate: int,
    seconds: int,
    rounds: int,
    extra: tuple[str, ...],
    others: tuple[str, ...],
    checkouts: tuple[Path, ...],
    java: bool,
    path: Path | None,
) -> None:
    """Measure the latency of a stateless and of a stateful application."""
    console = Console()
    runners = [headrace_runner(extra), *(headrace_runner((*extra, other)) for other in others)]
    runners += [headrace_runner(extra, checkout) for checkout in checkouts]
    runners += kafka_streams(console.print) if java else []
    with open_cluster(bootstrap) as cluster:
        broker_warm_up_s = BROKER_WARM_UP_S if bootstrap is None else 0.0
        found = measure_latency(
            cluster, rate, seconds, runners, rounds, broker_warm_up_s=broker_warm_up_s
        )
    console.print(latency_table(found))
    if path is not None:
        path.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
