"""Cost of monitoring for a worker: counters, snapshots, samples of node times, and scrapes.

``python -m benchmarks.monitoring_cost`` measures the running sum and the stateless job, in less
than six minutes, with a temporary broker. Its exit code is 1 if monitoring costs more than 1 % of
the CPU time per record. Run it on an idle machine.

One application processes a backlog and serves ``/metrics``. Intervals of a second with monitoring,
and a scrape every five seconds, alternate with intervals without it. Each starts and ends with a
commit. The order changes from pair to pair, and ratios are taken within a pair, so that other load
of the machine affects both sides.

The verdict uses the CPU time of the whole process per record, including the threads of the clients
and of the HTTP server, because elapsed time varies more. The median of all pairs is printed with
its standard error; if the error is too large, there is no verdict. Without monitoring, records are
still counted, because the benchmark needs their number.

The CPU time of monitoring itself is printed too, by the clocks of the threads that do it. It varies
less, but does not include what one thread costs another one.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import structlog

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.job import Job, topic
from benchmarks.measure.cluster import Cluster, open_cluster
from benchmarks.measure.intervals import Interval, IntervalMeter, Pair, rounds, settings_of
from headrace.streams.app import KafkaStreams
from headrace.streams.metrics.counters import Counters
from headrace.streams.metrics.node_times import NodeTimes
from headrace.streams.worker.snapshot_collector import SnapshotCollector
from headrace.streams_web import pages

SCRAPE_INTERVAL_S = 5.0
WARM_RECORDS = 200_000
PARTITIONS = 4
COPIES = 4
"""Number of times that the generated records are written, because generating takes long."""
MAX_COST = 0.01
MAX_ERROR = 0.0025
"""Maximum standard error of the median for a verdict."""


class MonitoringSwitch:
    """Switches counters, snapshots and node times of this process on and off."""

    def __init__(self) -> None:
        self.is_on = True
        self.spent_s = 0.0
        """CPU time of monitoring, by the clocks of the threads that do it."""
        ran, collect, sample = Counters.ran, SnapshotCollector.turn, NodeTimes.sample

        def switched_ran(counters: Counters, *arguments: Any, **options: Any) -> None:
            if self.is_on:
                with self._clocked():
                    ran(counters, *arguments, **options)
            else:
                counters.processed += arguments[1]

        def switched_collect(collector: SnapshotCollector) -> None:
            if self.is_on:
                with self._clocked():
                    collect(collector)

        def switched_run(times: NodeTimes, thread: int, activity: Callable[[], str | None]) -> None:
            last_s = time.monotonic()
            while not times._ended.wait(times._every_s if self.is_on else 10 * times._every_s):
                now_s = time.monotonic()
                if self.is_on:
                    with self._clocked():
                        sample(times, times._frames().get(thread), now_s - last_s, activity())
                last_s = now_s

        setattr(Counters, "ran", switched_ran)  # noqa: B010
        setattr(SnapshotCollector, "turn", switched_collect)  # noqa: B010
        setattr(NodeTimes, "_run", switched_run)  # noqa: B010
        scrape = pages.scrape

        def clocked_scrape(*arguments: Any) -> bytes:
            with self._clocked():
                return scrape(*arguments)

        setattr(pages, "scrape", clocked_scrape)  # noqa: B010

    @contextmanager
    def _clocked(self) -> Iterator[None]:
        begin_s = time.thread_time()
        try:
            yield
        finally:
            self.spent_s += time.thread_time() - begin_s


def _thread_clock(name: str) -> int:
    """Return the CPU clock of a thread."""
    thread = next(t for t in threading.enumerate() if t.name == name)
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


@dataclass(frozen=True, slots=True)
class RelativeCost:
    """Additional cost per record, relative to the cost without the measured feature.

    Args:
        median: median of all pairs.
        quartiles: lower and upper quartile of the pairs.
        error: standard error of the median.
    """

    median: float
    quartiles: tuple[float, float]
    error: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], seconds: Callable[[Interval], float]) -> RelativeCost:
        """Compare the seconds per record within each pair.

        >>> slow, quick = Interval(100, 1.02, 0, 0), Interval(100, 1.0, 0, 0)
        >>> found = RelativeCost.of([(slow, quick)] * 4, lambda interval: interval.process_s)
        >>> round(found.median, 6), found.error
        (0.02, 0.0)

        Pairs with an interval without records are ignored:

        >>> empty = Interval(0, 0.1, 0, 1)
        >>> pairs = [(slow, quick)] * 4 + [(empty, quick), (slow, empty)]
        >>> found == RelativeCost.of(pairs, lambda interval: interval.process_s)
        True
        """
        ratios = [
            (seconds(on) / on.records) / (seconds(off) / off.records) - 1
            for on, off in pairs
            if on.records and off.records  # one commit may take a whole interval
        ]
        low, median, high = statistics.quantiles(ratios, n=4)
        # Quartiles of a normal distribution are 0.6745 deviations from its mean. Unlike the
        # deviation of the sample, they are not affected by outliers.
        deviation = (high - low) / 2 / 0.6745
        return cls(median, (low, high), 1.253 * deviation / len(ratios) ** 0.5)

    @property
    def verdict(self) -> bool | None:
        """Whether the cost is at most `MAX_COST`; None if the error is too large."""
        if self.error > MAX_ERROR:
            return None
        return self.median <= MAX_COST

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.median:+.2%} ± {self.error:.2%}, quartiles {low:+.1%} and {high:+.1%}"


def measure(
    cluster: Cluster,
    job: Job,
    monitoring: MonitoringSwitch,
    *,
    records: int,
    seconds: float,
    interval_s: float,
) -> list[Pair]:
    """Measure pairs until the time is up; after each backlog, start another application."""
    until_s = time.monotonic() + seconds
    source = f"monitoring-{secrets.token_hex(3)}"
    dataset = job.generate(job.shape(records // COPIES))
    cluster.create(*(topic(source, suffix) for suffix in dataset.inputs), partitions=PARTITIONS)
    for _ in range(COPIES):
        for suffix, rows in dataset.inputs.items():
            cluster.fill(topic(source, suffix), rows)
    all_records = COPIES * dataset.records
    del dataset
    found: list[Pair] = []
    while time.monotonic() < until_s:
        with _running(cluster, job, source, monitoring) as (meter, url):
            intervals = rounds(
                meter,
                ("monitored", "unmonitored"),
                _Mode(monitoring, url, interval_s).switch,
                seconds=interval_s,
                until_s=until_s,
                max_records=all_records - WARM_RECORDS,
            )
            found += [(one["monitored"], one["unmonitored"]) for one in intervals]
        monitoring.is_on = True
    cluster.delete(source)
    return found


class _Mode:
    """Switches monitoring for an interval, with a scrape every five seconds of monitored time."""

    def __init__(self, monitoring: MonitoringSwitch, url: str, interval_s: float) -> None:
        self._monitoring = monitoring
        self._url = url
        self._interval_s = interval_s
        self._since_scrape_s = 0.0

    def switch(self, mode: str) -> None:
        self._monitoring.is_on = mode == "monitored"
        if self._monitoring.is_on:
            self._since_scrape_s += self._interval_s
            if self._since_scrape_s >= SCRAPE_INTERVAL_S:
                self._since_scrape_s -= SCRAPE_INTERVAL_S
                threading.Thread(target=_scrape, args=(self._url,)).start()


@contextmanager
def _running(
    cluster: Cluster, job: Job, source: str, monitoring: MonitoringSwitch
) -> Iterator[tuple[IntervalMeter, str]]:
    """Run an application; yield its meter and the server's URL after a warm-up."""
    name = f"{source}-{secrets.token_hex(3)}"
    server_clocks: list[int] = []
    meter = IntervalMeter(lambda: monitoring.spent_s + sum(map(time.clock_gettime, server_clocks)))
    cluster.create(f"{name}-output", partitions=PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="headrace-monitoring-") as state:
        app = KafkaStreams(
            job.topology(source, f"{name}-output"),
            settings_of(cluster.bootstrap, name, state),
            worker_listener=meter,
        )
        meter.processed = lambda: app.records_processed
        with app, app.serve(port=0) as web:
            app.start()
            while meter.records < WARM_RECORDS:
                time.sleep(0.01)
            _scrape(web.url)  # The first scrape imports modules of the server.
            server_clocks.append(_thread_clock("headrace-web"))
            try:
                yield meter, web.url
            finally:
                server_clocks.clear()  # The server's thread ends before the last commit.
    cluster.delete(name)


def _scrape(url: str) -> None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        answer.read()


def report(name: str, pairs: Sequence[Pair], interval_s: float) -> bool | None:
    """Print the results of a job, and return the verdict."""
    records = sum(on.records + off.records for on, off in pairs)
    print(f"{name}: {len(pairs)} pairs of intervals of {interval_s:g} s, {records:,} records")
    cost = RelativeCost.of(pairs, lambda interval: interval.process_s)
    worker = RelativeCost.of(pairs, lambda interval: interval.worker_s)
    elapsed = RelativeCost.of(pairs, lambda interval: interval.wall_s)
    print(f"  CPU time per record: {cost}")
    print(f"  CPU time per record of the worker's thread: {worker}")
    print(f"  elapsed time per record: {elapsed}")
    monitoring_s = sum(on.monitoring_s for on, _ in pairs)
    process_s = sum(on.process_s for on, _ in pairs)
    print(f"  CPU time of monitoring, by its threads' clocks: {monitoring_s / process_s:.2%}")
    verdicts = {True: "yes", False: "NO", None: "unknown, the measurement is too noisy"}
    print(f"  costs at most {MAX_COST:.0%}: {verdicts[cost.verdict]}", flush=True)
    return cost.verdict


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--records", default=4_000_000, show_default=True, help="Records in the backlog.")
@click.option(
    "--seconds", default=165.0, show_default=True, help="Duration of a job with its preparation."
)
@click.option(
    "--turn", "interval_s", default=1.0, show_default=True, help="Duration of an interval in s."
)
def main(jobs: tuple[str, ...], records: int, seconds: float, interval_s: float) -> None:
    """Measure the cost of monitoring, by default for the jobs sum and stateless."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    monitoring, verdicts = MonitoringSwitch(), []
    with open_cluster(None) as cluster:
        for name in jobs or ("sum", "stateless"):
            pairs = measure(
                cluster,
                JOBS[name],
                monitoring,
                records=records,
                seconds=seconds,
                interval_s=interval_s,
            )
            if len(pairs) < 2:
                sys.exit(f"{name}: only {len(pairs)} pairs. Increase --seconds or --records.")
            verdicts.append(report(name, pairs, interval_s))
    sys.exit(0 if all(verdicts) else 1)


if __name__ == "__main__":
    main()
