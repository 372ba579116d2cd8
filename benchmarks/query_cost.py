"""Cost of queries for a worker whose store another process reads, as `headrace run` does.

``python -m benchmarks.query_cost`` measures the sum by 100,000 keys. One application processes a
backlog. Three kinds of intervals of a second alternate: queries of its store over HTTP, queries of
the store of another, idle application, and no queries. A separate process serves both stores and
sends the queries: one batch of keys and ten single keys, one after the other, and then a pause. It
takes about a third of a core.

On a machine with two cores, worker and broker use both, so queries of any store slow the worker
down. Only the difference to queries of the idle application's store is the cost of reading the
worker's store. That difference must be at most 2 %.
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
from benchmarks.measure.intervals import Interval, IntervalMeter, rounds, settings_of
from benchmarks.measure.load import steady_load
from benchmarks.measure.processes import ApplicationProcess
from benchmarks.monitoring_cost import COPIES, PARTITIONS, WARM_RECORDS, RelativeCost
from headrace.streams.app import KafkaStreams
from headrace.streams.client.stores import RemoteStore, connect
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer

JOB, IDLE_KIND, KEYS = "sum", "last_value", 100_000
MAX_COST = 0.02
ONE_SIDED_95 = 1.645
"""Standard errors of a one-sided confidence bound of 95 %."""
WORKER, IDLE, NONE = "the worker's store", "the idle application's store", "no store"
"""Modes: the store that is queried."""
BATCH, SINGLES, PAUSE_S = 200, 10, 0.05
Settings = dict[str, object]
_ROOT = Path(__file__).parents[1]


class QueryProcess:
    """Handle of the process that serves stores and queries one of them.

    Args:
        applications: settings of the applications, by mode.
    """

    def __init__(self, applications: Mapping[str, Settings]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.query_cost", "--plan", json.dumps(applications)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read_line()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def switch(self, mode: str) -> int:
        """Query the store of a mode; return the number of keys that were queried so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(mode + "\n")
        self._process.stdin.flush()
        return int(self._read_line() or 0)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


class QueryLoop:
    """Serves the stores of all applications, and queries one of them.

    Args:
        applications: settings of the applications, by mode.
    """

    def __init__(self, applications: Mapping[str, Settings]) -> None:
        self._settings = applications
        self._stores: dict[str, tuple[RemoteStore[Any, Any], list[Any]]] = {}
        self._mode = NONE
        self._switched = threading.Condition()
        self._count = 0

    def run(self) -> None:
        """Read modes from the standard input, and print the number of queried keys."""
        with ExitStack() as served:
            for mode, settings in self._settings.items():
                kind = JOBS[JOB].kind if mode == WORKER else IDLE_KIND
                store = served.enter_context(_served_store(kind, settings))
                self._stores[mode] = store, [row.key for row in store.all(limit=20_000)]
            threading.Thread(target=self._query, daemon=True).start()
            print("ready", flush=True)
            for line in sys.stdin:
                with self._switched:
                    self._mode = line.strip()
                    self._switched.notify()
                print(self._count, flush=True)

    def _query(self) -> None:
        random = Random(1)
        while True:
            with self._switched:
                self._switched.wait_for(lambda: self._mode != NONE)
                store, keys = self._stores[self._mode]
            store.get_many(random.choices(keys, k=BATCH))
            for key in random.choices(keys, k=SINGLES):
                store.get(key)
            self._count += BATCH + SINGLES
            time.sleep(PAUSE_S)


@contextmanager
def _served_store(kind: str, settings: Settings) -> Iterator[RemoteStore[Any, Any]]:
    """Serve the only store of an application from its state directory over HTTP."""
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
def _idle_application(cluster: Cluster) -> Iterator[Settings]:
    """Run an application that has processed its input; yield its settings."""
    name = f"query-idle-{secrets.token_hex(3)}"
    source = f"{name}-in"
    cluster.create(f"{name}-output", source, partitions=PARTITIONS)
    cluster.fill(source, ((b'"key-%08d"' % n, b"%d" % n, START_MS) for n in range(KEYS)))
    with (
        tempfile.TemporaryDirectory(prefix="headrace-query-") as state,
        # Without commits, the age of its rows would exceed the limit of queries.
        steady_load(cluster.bootstrap, source, per_s=4, key_of=lambda number: number, partitions=0),
    ):
        process = ApplicationProcess(
            IDLE_KIND, bootstrap=cluster.bootstrap, run=name, source=name, state=Path(state)
        )
        process.wait_for("committed", records=KEYS)
        try:
            yield settings_of(cluster.bootstrap, name, state)
        finally:
            process.stop()


@contextmanager
def _running(
    cluster: Cluster, job: Job, source: str, idle: Settings
) -> Iterator[tuple[IntervalMeter, QueryProcess]]:
    """Run the measured application; yield its meter and the query process after a warm-up."""
    name = f"{source}-{secrets.token_hex(3)}"
    cluster.create(f"{name}-output", partitions=PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="headrace-query-") as state:
        settings, meter = settings_of(cluster.bootstrap, name, state), IntervalMeter()
        topology = job.topology(source, f"{name}-output")
        with KafkaStreams(topology, settings, worker_listener=meter) as app:
            meter.processed = lambda: app.records_processed
            app.start()
            while meter.records < WARM_RECORDS:
                time.sleep(0.01)
            queries = QueryProcess({WORKER: settings, IDLE: idle})
            try:
                yield meter, queries
            finally:
                queries.close()
    cluster.delete(name)


@click.command()
@click.option("--records", default=4_000_000, show_default=True, help="Records in the backlog.")
@click.option("--seconds", default=240.0, show_default=True, help="Duration in s.")
@click.option(
    "--turn", "interval_s", default=1.0, show_default=True, help="Duration of an interval in s."
)
@click.option("--plan", hidden=True)
def main(records: int, seconds: float, interval_s: float, plan: str | None) -> None:
    """Measure the cost of queries for the worker whose store is queried."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    if plan is not None:
        QueryLoop(json.loads(plan)).run()
        return
    until_s = time.monotonic() + seconds
    found: list[dict[str, Interval]] = []
    queried = 0
    with open_cluster(None) as cluster, _idle_application(cluster) as idle:
        job, source = JOBS[JOB], f"query-{secrets.token_hex(3)}"
        dataset = job.generate(job.shape(records // COPIES))
        cluster.create(*(topic(source, suffix) for suffix in dataset.inputs), partitions=PARTITIONS)
        for _ in range(COPIES):
            for suffix, rows in dataset.inputs.items():
                cluster.fill(topic(source, suffix), rows)
        while time.monotonic() < until_s:
            with _running(cluster, job, source, idle) as (meter, queries):
                found += rounds(
                    meter,
                    (WORKER, IDLE, NONE),
                    queries.switch,
                    seconds=interval_s,
                    until_s=until_s,
                    max_records=COPIES * dataset.records - WARM_RECORDS,
                )
                queried += queries.switch(NONE)
    _report(found, queried)


def _report(found: Sequence[Mapping[str, Interval]], queried: int) -> None:
    query_s = sum(intervals[mode].wall_s for intervals in found for mode in (WORKER, IDLE))
    without = [intervals[NONE] for intervals in found]
    rate = sum(one.records for one in without) / sum(one.wall_s for one in without)
    print(f"{JOB}: {len(found)} rounds, {queried / query_s:,.0f} gets/s in intervals with queries")
    print(f"  {rate:,.0f} records/s without queries")
    costs = {mode: _costs(found, mode) for mode in (IDLE, NONE)}
    for mode, cost in costs.items():
        print(f"queries of {WORKER}, compared with queries of {mode}:")
        for name, one in cost.items():
            print(f"  {name}: {one}")
    decisive = costs[IDLE]["elapsed time per record"]
    verdict = "unknown, the measurement is too noisy"
    if decisive.median + ONE_SIDED_95 * decisive.error <= MAX_COST:
        verdict = "yes"
    elif decisive.median - ONE_SIDED_95 * decisive.error > MAX_COST:
        verdict = "NO"
    print(f"costs at most {MAX_COST:.0%} of the elapsed time, compared with {IDLE}: {verdict}")


def _costs(found: Sequence[Mapping[str, Interval]], other: str) -> dict[str, RelativeCost]:
    pairs = [(intervals[WORKER], intervals[other]) for intervals in found]
    return {
        "elapsed time per record": RelativeCost.of(pairs, lambda interval: interval.wall_s),
        "CPU time per record": RelativeCost.of(pairs, lambda interval: interval.process_s),
        "CPU time per record of the worker's thread": RelativeCost.of(
            pairs, lambda interval: interval.worker_s
        ),
    }


if __name__ == "__main__":
    main()
