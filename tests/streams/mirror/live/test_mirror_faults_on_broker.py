"""A mirror under faults: each record once, in its order, and a group that goes on at the next."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import pytest

from headrace.streams.devbroker import DevBroker
from headrace.streams.devbroker.ports import choose_base
from tests.support import kafka
from tests.support.connections import cut
from tests.support.mirrors import Clusters, Writer
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from tests.support.topics import Topics
from tests.support.warm import await_coordinators

TOPIC, PARTITIONS, GROUP = "orders", 4, "readers"
COPY = f"west.{TOPIC}"
WORDS = ("--topics", TOPIC, "--rename", "{cluster}.{topic}", "--groups", GROUP)
FENCED = 6


@dataclass
class Field:
    """Two clusters and a mirror between them, which is started again when it was killed."""

    west: DevBroker
    east: DevBroker
    clusters: Clusters
    choose: random.Random
    mirror: subprocess.Popen[bytes] | None = None
    lives: int = 0
    struck: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start the mirror."""
        self.lives += 1
        log = self.clusters.directory / f"mirror-{self.lives}.log"
        with log.open("wb") as out:
            self.mirror = subprocess.Popen(
                self.clusters.command(*WORDS), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
            )

    def live(self) -> subprocess.Popen[bytes]:
        """The mirror, which must be running: nothing but a kill ends it."""
        assert self.mirror is not None
        assert self.mirror.poll() is None, self.said()
        return self.mirror

    def said(self) -> str:
        """What the last mirror has said."""
        return (self.clusters.directory / f"mirror-{self.lives}.log").read_text()[-3000:]

    def wait(self, least_s: float, most_s: float) -> None:
        """Wait for a time of chance."""
        time.sleep(self.choose.uniform(least_s, most_s))


def _kill(at: Field) -> None:
    process = at.live()
    process.kill()
    process.wait()
    at.start()


def _pause(at: Field) -> None:
    process = at.live()
    process.send_signal(signal.SIGSTOP)
    at.wait(0.2, 12)  # the broker ends a transaction after ten
    process.send_signal(signal.SIGCONT)


def _cut(at: Field) -> None:
    for _ in range(3):
        cut(at.live().pid)
        at.wait(0.05, 0.5)


def _kill_broker(at: Field) -> None:
    broker = at.choose.choice((at.west, at.east))
    broker.kill(1)
    at.wait(0, 2)
    broker.start()


def _pause_broker(at: Field) -> None:
    broker = at.choose.choice((at.west, at.east))
    broker.pause(1)
    at.wait(0.5, 6)
    broker.resume(1)


def _zombie(at: Field) -> None:
    """Another one takes over while the first one stands still, and fences it."""
    old = at.live()
    old.send_signal(signal.SIGSTOP)
    try:
        at.start()
        _await_copying(at)
    finally:
        old.send_signal(signal.SIGCONT)
    assert old.wait(PATIENCE_S) == FENCED


def _await_copying(at: Field) -> None:
    log = at.clusters.directory / f"mirror-{at.lives}.log"
    deadline = time.monotonic() + PATIENCE_S
    while "partitions_begun" not in log.read_text():
        at.live()
        assert time.monotonic() < deadline, at.said()
        time.sleep(0.1)


FAULTS: dict[str, tuple[int, Callable[[Field], None]]] = {
    "mirror killed": (8, _kill),
    "mirror stopped for a while": (4, _pause),
    "connections cut": (4, _cut),
    "broker killed": (4, _kill_broker),
    "broker stopped for a while": (3, _pause_broker),
    "zombie": (2, _zombie),
}


@contextmanager
def _field(directory: Path, seed: int) -> Iterator[Field]:
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(DevBroker(directory / name, port=choose_base(1)))
            for name in ("west", "east")
        ]
        for broker in brokers:
            await_coordinators(broker.bootstrap)
        servers = {name: b.bootstrap for name, b in zip(("west", "east"), brokers, strict=True)}
        at = Field(*brokers, Clusters(directory, servers), random.Random(seed))
        Topics(at.west.bootstrap).create_named(TOPIC, partitions=PARTITIONS)
        try:
            yield at
        finally:
            if at.mirror is not None and at.mirror.poll() is None:
                at.mirror.kill()
                at.mirror.wait()


class _Load:
    """Transactions of the source, some of them aborted, from one thread; brokers may go away."""

    def __init__(self, at: Field) -> None:
        self._servers = at.west.bootstrap
        self._choose = random.Random(at.choose.random())
        self._numbers = itertools.count()
        self._writer: Writer | None = None

    def write(self, count: int) -> None:
        """Write so many records, or somewhat more."""
        written = 0
        while written < count:
            size = self._choose.choice((1, 10, 300, 1500))
            numbers = [next(self._numbers) for _ in range(size)]
            commits = self._choose.random() > 0.2
            try:
                if self._writer is None:
                    self._writer = Writer(self._servers, "load")
                self._writer.write(TOPIC, numbers, partitions=PARTITIONS, commits=commits)
                written += size if commits else 0
            except confluent_kafka.KafkaException:
                self._writer = None  # whether it is committed is for both clusters to agree on
                time.sleep(0.2)


def _run(at: Field, *, records: int, faults: int) -> None:
    load = _Load(at)
    at.start()
    names = list(FAULTS)
    weights = [FAULTS[name][0] for name in names]
    order = names + at.choose.choices(names, weights, k=max(0, faults - len(names)))
    for name in order[:faults]:
        writing = threading.Thread(target=load.write, args=(records // faults,))
        writing.start()
        at.wait(0.2, 2)
        at.struck[name] = at.struck.get(name, 0) + 1
        FAULTS[name][1](at)
        writing.join()
        at.live()


def _rows(bootstrap: str, topic: str) -> list[list[kafka.Record]]:
    found: list[list[kafka.Record]] = [[] for _ in range(PARTITIONS)]
    for record in kafka.read(bootstrap, topic):
        found[record.partition].append(record)
    return found


def _bare(record: kafka.Record) -> tuple[object, ...]:
    return record.key, record.value, record.timestamp, record.headers


def _check_equal(at: Field) -> tuple[list[list[kafka.Record]], list[list[kafka.Record]]]:
    there, here = _rows(at.west.bootstrap, TOPIC), _rows(at.east.bootstrap, COPY)
    for number in range(PARTITIONS):
        wanted, found = list(map(_bare, there[number])), list(map(_bare, here[number]))
        assert len(found) == len(wanted), f"partition {number}: {len(found)} of {len(wanted)}"
        assert found == wanted, f"partition {number} differs"
    return there, here


def _check_moves(
    at: Field, there: list[list[kafka.Record]], here: list[list[kafka.Record]]
) -> None:
    """Wherever a group stands, the next record that it reads at the other cluster is the next."""
    for turn in range(3):
        at_west = {
            p: at.choose.randrange(rows[-1].offset + 2) if turn else rows[-1].offset + 1
            for p, rows in enumerate(there)
        }
        kafka.set_committed(at.west.bootstrap, GROUP, TOPIC, at_west)
        at.clusters.mirrored("offsets", GROUP, "--yes")
        at_east = kafka.committed(at.east.bootstrap, GROUP, COPY)
        for p in range(PARTITIONS):
            left = sum(row.offset >= at_west[p] for row in there[p])
            assert sum(row.offset >= at_east[p] for row in here[p]) == left, (turn, p)
        at.clusters.mirrored("offsets", GROUP, "--yes", "--back")
        again = kafka.committed(at.west.bootstrap, GROUP, TOPIC)
        for p in range(PARTITIONS):
            assert [r for r in there[p] if r.offset >= again[p]] == [
                r for r in there[p] if r.offset >= at_west[p]
            ]


def _under_faults(directory: Path, *, records: int, faults: int, seed: int) -> None:
    with _field(directory, seed) as at:
        begun = time.monotonic()
        _run(at, records=records, faults=faults)
        struck_s = time.monotonic() - begun
        process = at.live()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, at.said()
        at.clusters.mirrored(*WORDS, "--once")
        there, here = _check_equal(at)
        _check_moves(at, there, here)
        total = sum(map(len, there))
        assert total >= records
        print(f"{total} records, {struck_s:.0f} s, {at.lives} lives, faults {at.struck}")


def test_records_are_copied_once_whatever_is_killed(tmp_path: Path) -> None:
    _under_faults(tmp_path, records=30_000, faults=6, seed=3)


@pytest.mark.long
def test_a_million_records_are_copied_once_under_fifty_faults(tmp_path: Path) -> None:
    _under_faults(tmp_path, records=1_000_000, faults=50, seed=11)
