"""What it costs a worker that its stores are asked for: by another process, as `headrace run` does.

``python -m benchmarks.asking`` says it of the sum by 100,000 keys, as `benchmarks.watching` says it
of metrics: one application processes a backlog, and in turns its store is asked over HTTP all the
time, the store of another application is, or none. A process beside both serves the stores and asks
itself, with one batch of keys and ten single ones after the other, and pauses between, so that it
takes about a third of a core.

The other application has done its work and idles. To ask it takes the same of the machine, of which
a worker and a broker leave little where there are two cores. What is more where the worker's own
store is asked is what the reading costs the worker, and that is what the bar is about.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import click
import structlog

from benchmarks.jobs.catalogue import JOBS, TOPOLOGIES
from benchmarks.jobs.job import Job, topic
from benchmarks.jobs.shape import START_MS
from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.feeding import feeding
from benchmarks.measure.processes import Service
from benchmarks.measure.turns import Meter, Turn, rounds, settings_of
from benchmarks.watching import FILLS, PARTITIONS, WARM_RECORDS, Cost
from headrace.streams.app import KafkaStreams
from headrace.streams.client.stores import RemoteStore, connect
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer

JOB, IDLE, KEYS = "sum", "last_value", 100_000
BAR = 0.02
SURE = 1.645
"""Of a hundred medians, ninety-five are not further above the true one than so many errors."""
WORKER, ANOTHER, NOBODY = "the worker's store", "another store", "no store"
"""Who is asked."""
BATCH, SINGLES, PAUSE_S = 200, 10, 0.05
Settings = dict[str, object]
_ROOT = Path(__file__).parents[1]


class Asking:
    """The process beside the applications, which asks where it is told to.

    Args:
        applications: the settings of those that may be asked, by the way they are called.
    """

    def __init__(self, applications: Mapping[str, Settings]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.asking", "--plan", json.dumps(applications)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said("")

    def _said(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if word:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def switch(self, way: str) -> int:
        """Ask an application, or none; returns how many rows were asked for so far."""
        return int(self._said(way) or 0)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Asker:
    """What that process does: it serves all applications, and asks one of them, or none."""

    def __init__(self, applications: Mapping[str, Settings]) -> None:
        self._settings = applications
        self._stores: dict[str, tuple[RemoteStore[Any, Any], list[Any]]] = {}
        self._way = NOBODY
        self._turned = threading.Condition()
        self._count = 0

    def run(self) -> None:
        """Do as the standard input says."""
        with ExitStack() as served:
            for way, settings in self._settings.items():
                kind = JOBS[JOB].kind if way == WORKER else IDLE
                store = served.enter_context(_served(kind, settings))
                self._stores[way] = store, [row.key for row in store.all(limit=20_000)]
            threading.Thread(target=self._ask, daemon=True).start()
            print("ready", flush=True)
            for line in sys.stdin:
                with self._turned:
                    self._way = line.strip()
                    self._turned.notify()
                print(self._count, flush=True)

    def _ask(self) -> None:
        random = Random(1)
        while True:
            with self._turned:
                self._turned.wait_for(lambda: self._way != NOBODY)
                store, keys = self._stores[self._way]
            store.get_many(random.choices(keys, k=BATCH))
            for key in random.choices(keys, k=SINGLES):
                store.get(key)
            self._count += BATCH + SINGLES
            time.sleep(PAUSE_S)


@contextmanager
def _served(kind: str, settings: Settings) -> Iterator[RemoteStore[Any, Any]]:
    """The one store of an application, from its directory and over HTTP."""
    app = KafkaStreams(TOPOLOGIES[kind]("any", "any-output"), settings)
    health = HealthSnapshot(snapshot=app.metrics(), turned_s=0.0, is_loaded=True, has_failed=False)
    with (
        app.queries() as queries,
        HttpServer(lambda: health, "0", log=EventLog(), queries=lambda: queries) as server,
        connect(server.url, never_back=False) as application,
    ):
        (name,) = queries.stores
        yield application.store(name)


@contextmanager
def _idle(cluster: Cluster) -> Iterator[Settings]:
    """The settings of another application, which has nearly nothing to do any more."""
    name = f"asking-idle-{secrets.token_hex(3)}"
    source = f"{name}-in"
    cluster.create(f"{name}-output", source, partitions=PARTITIONS)
    cluster.fill(source, ((b'"key-%08d"' % n, b"%d" % n, START_MS) for n in range(KEYS)))
    with (
        tempfile.TemporaryDirectory(prefix="headrace-asking-") as state,
        # Without any commit its rows would be called old.
        feeding(cluster.bootstrap, source, per_s=4, key_of=lambda number: number, partitions=0),
    ):
        service = Service(
            IDLE, bootstrap=cluster.bootstrap, run=name, source=name, state=Path(state)
        )
        service.wait_for("committed", records=KEYS)
        try:
            yield settings_of(cluster.bootstrap, name, state)
        finally:
            service.stop()


@contextmanager
def _running(
    cluster: Cluster, job: Job, source: str, idle: Settings
) -> Iterator[tuple[Meter, Asking]]:
    name = f"{source}-{secrets.token_hex(3)}"
    cluster.create(f"{name}-output", partitions=PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="headrace-asking-") as state:
        settings, meter = settings_of(cluster.bootstrap, name, state), Meter()
        topology = job.topology(source, f"{name}-output")
        with KafkaStreams(topology, settings, worker_listener=meter) as app:
            meter.processed = lambda: app.records_processed
            app.start()
            while meter.records < WARM_RECORDS:
                time.sleep(0.01)
            asking = Asking({WORKER: settings, ANOTHER: idle})
            try:
                yield meter, asking
            finally:
                asking.close()
    cluster.delete(name)


@click.command()
@click.option("--records", default=4_000_000, help="Of the backlog.")
@click.option("--seconds", default=240.0)
@click.option("--turn", "turn_s", default=1.0, help="Seconds.")
@click.option("--plan", hidden=True)
def main(records: int, seconds: float, turn_s: float, plan: str | None) -> None:
    """Print what it costs a worker that its store is asked for."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    if plan is not None:
        Asker(json.loads(plan)).run()
        return
    until_s, found, rows = time.monotonic() + seconds, list[dict[str, Turn]](), 0
    with open_cluster(None) as cluster, _idle(cluster) as idle:
        job, source = JOBS[JOB], f"asking-{secrets.token_hex(3)}"
        made = job.make(job.shape(records // FILLS))
        cluster.create(*(topic(source, end) for end in made.inputs), partitions=PARTITIONS)
        for _ in range(FILLS):
            for end, written in made.inputs.items():
                cluster.fill(topic(source, end), written)
        while time.monotonic() < until_s:
            with _running(cluster, job, source, idle) as (meter, asking):
                found += rounds(
                    meter,
                    (WORKER, ANOTHER, NOBODY),
                    asking.switch,
                    seconds=turn_s,
                    until_s=until_s,
                    most=FILLS * made.records - WARM_RECORDS,
                )
                rows += asking.switch(NOBODY)
    _report(found, rows)


def _report(found: Sequence[Mapping[str, Turn]], rows: int) -> None:
    asked_s = sum(turns[way].wall_s for turns in found for way in (WORKER, ANOTHER))
    idle = [turns[NOBODY] for turns in found]
    rate = sum(turn.records for turn in idle) / sum(turn.wall_s for turn in idle)
    print(f"{JOB}: {len(found)} rounds, {rows / asked_s:,.0f} gets/s while somebody asked")
    print(f"  {rate:,.0f} records/s while nobody asked")
    costs = {way: _costs(found, way) for way in (ANOTHER, NOBODY)}
    for way, cost in costs.items():
        print(f"beside turns in which {way} was asked:")
        for what, one in cost.items():
            print(f"  {what}: {one}")
    decisive = costs[ANOTHER]["time by record"]
    said = "not shown: the machine is too restless"
    if decisive.median + SURE * decisive.error <= BAR:
        said = "holds"
    elif decisive.median - SURE * decisive.error > BAR:
        said = "does NOT hold"
    print(f"at most {BAR:.0%} of the time by record, beside another store: {said}")


def _costs(found: Sequence[Mapping[str, Turn]], beside: str) -> dict[str, Cost]:
    pairs = [(turns[WORKER], turns[beside]) for turns in found]
    return {
        "time by record": Cost.of(pairs, lambda turn: turn.wall_s),
        "processor time by record": Cost.of(pairs, lambda turn: turn.all_s),
        "that of the worker's thread alone": Cost.of(pairs, lambda turn: turn.own_s),
    }


if __name__ == "__main__":
    main()
