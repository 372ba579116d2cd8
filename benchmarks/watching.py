"""What it costs a worker to be watched: counters, snapshots, looks at nodes, and scrapes.

``python -m benchmarks.watching`` says it of the sum and of the stateless job, in less than six
minutes, and ends with exit code 1 where it is more than one percent. It starts a broker of its own
and wants a machine that does nothing else.

One application processes a backlog and serves ``/metrics``. In turns of a second, from the end of a
commit to one's end, it is watched, with a scrape each five seconds, and is not. A turn is compared
with its neighbour, so that what else the machine does falls on both, and each pair begins with what
the one before has ended with.
What decides is the processor time that the process takes for a record, the threads of its clients
and its server included: time on the wall spreads more. The median of all pairs is told with how
well it is known; where that is not well enough, it says so and decides nothing.

What is not watched still counts its records, as this must see how many there were.

Beside that stands what the watching takes by the clocks of the threads that do it: the counters and
snapshots in the worker's, the looks in their own, the scrapes in the server's. That is known much
better, and leaves out what one thread takes from another by being there.
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
from benchmarks.measure.turns import Meter, Pair, Turn, rounds, settings_of
from headrace.streams.app import KafkaStreams
from headrace.streams.metrics.counters import Counters
from headrace.streams.metrics.node_times import NodeTimes
from headrace.streams.worker.snapshot_collector import SnapshotCollector
from headrace.streams_web import pages

SCRAPE_S = 5.0
WARM_RECORDS = 200_000
PARTITIONS = 4
FILLS = 4
"""So many times the same records are written: to make them takes long."""
BAR = 0.01
KNOWN_TO = 0.0025
"""How well the median must be known for a verdict: a quarter of the bar."""


class Watch:
    """Has the counters, the snapshots and the looks of this process work, or not."""

    def __init__(self) -> None:
        self.is_on = True
        self.spent_s = 0.0
        """By the clocks of the threads that count, make snapshots, and look."""
        ran, turn, look = Counters.ran, SnapshotCollector.turn, NodeTimes.sample

        def switched_ran(counters: Counters, *arguments: Any, **options: Any) -> None:
            if self.is_on:
                with self._clocked():
                    ran(counters, *arguments, **options)
            else:
                counters.processed += arguments[1]

        def switched_turn(gathering: SnapshotCollector) -> None:
            if self.is_on:
                with self._clocked():
                    turn(gathering)

        def switched_run(times: NodeTimes, thread: int, activity: Callable[[], str | None]) -> None:
            last_s = time.monotonic()
            while not times._ended.wait(times._every_s if self.is_on else 10 * times._every_s):
                now_s = time.monotonic()
                if self.is_on:
                    with self._clocked():
                        look(times, times._frames().get(thread), now_s - last_s, activity())
                last_s = now_s

        setattr(Counters, "ran", switched_ran)  # noqa: B010
        setattr(SnapshotCollector, "turn", switched_turn)  # noqa: B010
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


def _clock_of(name: str) -> int:
    """The clock of a thread."""
    thread = next(t for t in threading.enumerate() if t.name == name)
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


@dataclass(frozen=True, slots=True)
class Cost:
    """By how much a record costs more where it is watched, as shares.

    Args:
        median: of all pairs.
        half: half of the pairs are between these.
        error: a median of as many pairs is not further off than this two times of three.
    """

    median: float
    half: tuple[float, float]
    error: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], seconds: Callable[[Turn], float]) -> Cost:
        """By what a record takes of something.

        >>> slow, quick = Turn(100, 1.02, 0, 0), Turn(100, 1.0, 0, 0)
        >>> found = Cost.of([(slow, quick)] * 4, lambda turn: turn.all_s)
        >>> idle = Turn(0, 0.1, 0, 1)
        >>> found == Cost.of([(slow, quick)] * 4 + [(idle, quick), (slow, idle)], lambda t: t.all_s)
        True
        >>> round(found.median, 6), found.error
        (0.02, 0.0)
        """
        shares = [
            (seconds(on) / on.records) / (seconds(off) / off.records) - 1
            for on, off in pairs
            if on.records and off.records  # a commit may have taken all of a turn
        ]
        low, median, high = statistics.quantiles(shares, n=4)
        # Half of a normal distribution is within 0.6745 of its deviation, whatever lies far out.
        deviation = (high - low) / 2 / 0.6745
        return cls(median, (low, high), 1.253 * deviation / len(shares) ** 0.5)

    @property
    def verdict(self) -> bool | None:
        """Whether the bar holds; None where the machine was too restless to say."""
        if self.error > KNOWN_TO:
            return None
        return self.median <= BAR

    def __str__(self) -> str:
        low, high = self.half
        return (
            f"{self.median:+.2%} ± {self.error:.2%}, half of the pairs between {low:+.1%} and "
            f"{high:+.1%}"
        )


def measure(
    cluster: Cluster, job: Job, watch: Watch, *, records: int, seconds: float, turn_s: float
) -> list[Pair]:
    """Compare turns of one application after the other on the same records, until time is up."""
    until_s = time.monotonic() + seconds
    source = f"watching-{secrets.token_hex(3)}"
    made = job.make(job.shape(records // FILLS))
    cluster.create(*(topic(source, end) for end in made.inputs), partitions=PARTITIONS)
    for _ in range(FILLS):
        for end, rows in made.inputs.items():
            cluster.fill(topic(source, end), rows)
    all_records = FILLS * made.records
    del made
    found: list[Pair] = []
    while time.monotonic() < until_s:
        with _running(cluster, job, source, watch) as (meter, url):
            turns = rounds(
                meter,
                ("watched", "alone"),
                _Switch(watch, url, turn_s).turned,
                seconds=turn_s,
                until_s=until_s,
                most=all_records - WARM_RECORDS,
            )
            found += [(turn["watched"], turn["alone"]) for turn in turns]
        watch.is_on = True
    cluster.delete(source)
    return found


class _Switch:
    """Has the application watched for a turn, and scraped each five seconds of that, or not."""

    def __init__(self, watch: Watch, url: str, turn_s: float) -> None:
        self._watch = watch
        self._url = url
        self._turn_s = turn_s
        self._watched_s = 0.0

    def turned(self, way: str) -> None:
        self._watch.is_on = way == "watched"
        if self._watch.is_on:
            self._watched_s += self._turn_s
            if self._watched_s >= SCRAPE_S:
                self._watched_s -= SCRAPE_S
                threading.Thread(target=_scrape, args=(self._url,)).start()


@contextmanager
def _running(cluster: Cluster, job: Job, source: str, watch: Watch) -> Iterator[tuple[Meter, str]]:
    """The meter of an application that is warm, and where it serves."""
    name = f"{source}-{secrets.token_hex(3)}"
    server: list[int] = []  # its clock, once it is there
    meter = Meter(lambda: watch.spent_s + sum(map(time.clock_gettime, server)))
    cluster.create(f"{name}-output", partitions=PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="headrace-watching-") as state:
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
            _scrape(web.url)  # the first one loads what the server needs, once
            server.append(_clock_of("headrace-web"))
            try:
                yield meter, web.url
            finally:
                server.clear()  # its thread ends before the last commit
    cluster.delete(name)


def _scrape(url: str) -> None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        answer.read()


def report(name: str, pairs: Sequence[Pair], turn_s: float) -> bool | None:
    """Print what was found of a job; returns the verdict."""
    records = sum(on.records + off.records for on, off in pairs)
    print(f"{name}: {len(pairs)} pairs of turns of {turn_s:g} s, {records:,} records")
    cost = Cost.of(pairs, lambda turn: turn.all_s)
    print(f"  processor time by record: {cost}")
    print(f"  that of the worker's thread alone: {Cost.of(pairs, lambda turn: turn.own_s)}")
    print(f"  time by record: {Cost.of(pairs, lambda turn: turn.wall_s)}")
    watching_s, all_s = (sum(one(on) for on, _ in pairs) for one in (_watching, _all))
    print(f"  the watching itself, by its threads' clocks: {watching_s / all_s:.2%} of that")
    said = {True: "holds", False: "does NOT hold", None: "not shown: the machine is too restless"}
    print(f"  at most {BAR:.0%}: {said[cost.verdict]}", flush=True)
    return cost.verdict


def _watching(turn: Turn) -> float:
    return turn.watch_s


def _all(turn: Turn) -> float:
    return turn.all_s


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--records", default=4_000_000, help="Of the backlog of a job.")
@click.option("--seconds", default=165.0, help="For each job, to make its records included.")
@click.option("--turn", "turn_s", default=1.0, help="Seconds.")
def main(jobs: tuple[str, ...], records: int, seconds: float, turn_s: float) -> None:
    """Print what being watched costs, of the sum and the stateless job unless others are named."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    watch, verdicts = Watch(), []
    with open_cluster(None) as cluster:
        for name in jobs or ("sum", "stateless"):
            pairs = measure(
                cluster, JOBS[name], watch, records=records, seconds=seconds, turn_s=turn_s
            )
            if len(pairs) < 2:
                sys.exit(f"{name}: {len(pairs)} pairs: give it more --seconds or --records")
            verdicts.append(report(name, pairs, turn_s))
    sys.exit(0 if all(verdicts) else 1)


if __name__ == "__main__":
    main()
