"""What it costs a worker that its stores are asked for: by another process, as `headrace run` does.

``python -m benchmarks.asking`` says it of the count of sentences' words by 100,000 keys, as
`benchmarks.watching` says it of metrics: one application processes a backlog, and in turns of a
second its store is asked over HTTP all the time, and is not. A process beside it serves the store
and asks itself, with one batch of keys and ten single ones after the other, and pauses between, so
that it takes about a third of a core: more than that would show that the machine has no more cores.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import click
import structlog

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.job import Job, topic
from benchmarks.measure.cluster import Cluster, cluster
from benchmarks.peers.peer import CACHE_BYTES, COMMIT_MS
from benchmarks.watching import FILLS, PARTITIONS, WARM_RECORDS, Cost, Meter, Pair, Turn
from headrace.streams.app import KafkaStreams
from headrace.streams.facts.board import Board
from headrace.streams.remote.stores import RemoteStore, connect
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import WebServer

JOB = "sum_100k"
BAR, KNOWN_TO = 0.02, 0.01
BATCH, SINGLES, PAUSE_S = 200, 10, 0.05
_ROOT = Path(__file__).parents[1]


class Asking:
    """The process beside the application, which asks where it is told to."""

    def __init__(self, settings: dict[str, object], source: str) -> None:
        plan = json.dumps({"settings": settings, "source": source})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.asking", "--plan", plan],
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

    def switch(self, *, on: bool) -> int:
        """Ask, or ask no more; returns how many rows were asked for so far."""
        return int(self._said("on" if on else "off") or 0)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def _ask(plan: dict[str, object]) -> None:
    """Serve and ask, as the standard input says."""
    settings, source = plan["settings"], str(plan["source"])
    assert isinstance(settings, dict)
    app = KafkaStreams(JOBS[JOB].topology(source, f"{source}-none"), settings)
    on, count, random = threading.Event(), 0, Random(1)
    board = Board(facts=app.metrics(), turned_s=0.0, is_loaded=True, is_given_up=False)

    def ask() -> None:
        nonlocal count
        with (
            app.queries() as queries,
            WebServer(lambda: board, "0", log=EventLog(), queries=lambda: queries) as server,
            connect(server.url, never_back=False) as application,
        ):
            (name,) = queries.stores
            store: RemoteStore[Any, Any] = application.store(name)
            keys = [row.key for row in store.all(limit=20_000)]
            print("ready", flush=True)
            while True:
                on.wait()
                store.get_many(random.choices(keys, k=BATCH))
                for key in random.choices(keys, k=SINGLES):
                    store.get(key)
                count += BATCH + SINGLES
                time.sleep(PAUSE_S)

    threading.Thread(target=ask, daemon=True).start()
    for line in sys.stdin:
        on.set() if line.strip() == "on" else on.clear()
        print(count, flush=True)


@contextmanager
def _running(place: Cluster, job: Job, source: str) -> Iterator[tuple[KafkaStreams, Asking]]:
    name = f"{source}-{secrets.token_hex(3)}"
    place.create(f"{name}-output", partitions=PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="headrace-asking-") as state:
        settings: dict[str, object] = {
            "application.id": name,
            "bootstrap.servers": place.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "state.dir": state,
            "statestore.cache.max.bytes": CACHE_BYTES,
            "commit.interval.ms": COMMIT_MS,
            "consumer.auto.offset.reset": "earliest",
        }
        with KafkaStreams(job.topology(source, f"{name}-output"), settings) as app:
            app.start()
            while app.records_processed < WARM_RECORDS:
                time.sleep(0.01)
            asking = Asking(settings, source)
            try:
                yield app, asking
            finally:
                asking.close()
    place.delete(name)


def _pairs(app: KafkaStreams, asking: Asking, most: int, until_s: float) -> Iterator[Pair]:
    meter, is_first = Meter(app), True
    while time.monotonic() < until_s:
        turns: dict[bool, Turn] = {}
        for is_on in (is_first, not is_first):
            asking.switch(on=is_on)
            turns[is_on] = meter.turn(1.0)
        is_first = not is_first
        if app.records_processed >= most:
            return
        yield turns[True], turns[False]


@click.command()
@click.option("--records", default=3_000_000, help="Of the backlog.")
@click.option("--seconds", default=150.0)
@click.option("--plan", hidden=True)
def main(records: int, seconds: float, plan: str | None) -> None:
    """Print what it costs a worker that its store is asked for."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    if plan is not None:
        _ask(json.loads(plan))
        return
    until_s, pairs, rows = time.monotonic() + seconds, list[Pair](), 0
    with cluster(None) as place:
        job, source = JOBS[JOB], f"asking-{secrets.token_hex(3)}"
        made = job.make(records // FILLS)
        place.create(*(topic(source, end) for end in made.inputs), partitions=PARTITIONS)
        for _ in range(FILLS):
            for end, written in made.inputs.items():
                place.fill(topic(source, end), written)
        while time.monotonic() < until_s:
            with _running(place, job, source) as (app, asking):
                most = FILLS * made.records - WARM_RECORDS
                pairs += _pairs(app, asking, most, until_s)
                rows += asking.switch(on=False)
    _report(pairs, rows)


def _report(pairs: list[Pair], rows: int) -> None:
    asked_s = sum(on.wall_s for on, _ in pairs)
    print(f"{JOB}: {len(pairs)} pairs of turns of a second, {rows / asked_s:,.0f} gets/s in those")
    rate = sum(off.records for _, off in pairs) / sum(off.wall_s for _, off in pairs)
    print(f"  {rate:,.0f} records/s while nobody asked")
    cost = Cost.of(pairs, lambda turn: turn.all_s)
    print(f"  processor time by record: {cost}")
    print(f"  that of the worker's thread alone: {Cost.of(pairs, lambda turn: turn.own_s)}")
    print(f"  time by record: {Cost.of(pairs, lambda turn: turn.wall_s)}")
    said = "holds" if cost.median <= BAR else "does NOT hold"
    if cost.error > KNOWN_TO:
        said = "not shown: the machine is too restless"
    print(f"  at most {BAR:.0%}: {said}")


if __name__ == "__main__":
    main()
