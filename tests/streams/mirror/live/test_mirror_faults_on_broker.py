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
from headrace.streams.devbroker.cluster import choose_base
from tests.support import kafka
from tests.support.connections import cut
from tests.support.mirrors import Clusters, Writer
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from tests.support.topics import Topics
from tests.support.warm import await_coordinators

PARTITIONS = 4
NODES = 3
"""Each partition needs a leader at all times: a coordinator takes one without for deleted, and then
what it had to abort comes with the next commit."""
FENCED = 6
RECORDS_MAX, FAULTS_MAX = 1_000_000, 50


@dataclass
class Field:
    """Two clusters and a mirror between them, which is started again when it was killed."""

    west: DevBroker | None
    east: DevBroker | None
    clusters: Clusters
    topic: str
    choose: random.Random
    mirror: subprocess.Popen[bytes] | None = None
    lives: int = 0
    struck: dict[str, int] = field(default_factory=dict)

    @property
    def copy(self) -> str:
        """The topic at the target."""
        return f"west.{self.topic}"

    @property
    def group(self) -> str:
        """Whose offsets are moved."""
        return f"{self.topic}-readers"

    @property
    def words(self) -> tuple[str, ...]:
        """The options of the mirror."""
        rename = ("--rename", "{cluster}.{topic}", "--groups", self.group)
        return "--topics", self.topic, *rename, "--name", self.topic

    def start(self) -> None:
        """Start the mirror."""
        self.lives += 1
        log = self.clusters.directory / f"mirror-{self.lives}.log"
        with log.open("wb") as out:
            self.mirror = subprocess.Popen(
                self.clusters.command(*self.words), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
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
    broker, node = _choose_node(at)
    broker.kill(node)
    at.wait(0, 2)
    broker.start()


def _pause_broker(at: Field) -> None:
    broker, node = _choose_node(at)
    broker.pause(node)
    at.wait(0.5, 6)
    broker.resume(node)


def _choose_node(at: Field) -> tuple[DevBroker, int]:
    broker = at.choose.choice((at.west, at.east))
    assert broker is not None
    return broker, at.choose.randint(1, NODES)


def _zombie(at: Field) -> None:
    """Another one takes over while the first one stands still, and fences it."""
    _await_copying(at)  # else it may begin after the other one, and is no zombie
    old = at.live()
    old.send_signal(signal.SIGSTOP)
    try:
        at.start()
        _await_copying(at)
        old.send_signal(signal.SIGCONT)
        assert old.wait(PATIENCE_S) == FENCED
    finally:
        old.kill()
        old.wait()


def _await_copying(at: Field) -> None:
    log = at.clusters.directory / f"mirror-{at.lives}.log"
    deadline = time.monotonic() + PATIENCE_S
    while "partition_copies_started" not in log.read_text():
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
            stack.enter_context(DevBroker(directory / name, nodes=NODES, port=choose_base(NODES)))
            for name in ("west", "east")
        ]
        for broker in brokers:
            await_coordinators(broker.bootstrap)
        servers = {name: b.bootstrap for name, b in zip(("west", "east"), brokers, strict=True)}
        Topics(servers["west"]).create_named("orders", partitions=PARTITIONS)
        at = Field(*brokers, Clusters(directory, servers), "orders", random.Random(seed))
        with _ended(at):
            yield at


@contextmanager
def _ended(at: Field) -> Iterator[None]:
    try:
        yield
    finally:
        if at.mirror is not None and at.mirror.poll() is None:
            at.mirror.kill()
            at.mirror.wait()


class _Load:
    """Transactions of the source, some of them aborted, from one thread; brokers may go away."""

    def __init__(self, at: Field) -> None:
        self._topic = at.topic
        self._servers = at.clusters.servers["west"]
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
                    self._writer = Writer(self._servers, f"{self._topic}-load")
                self._writer.write(self._topic, numbers, partitions=PARTITIONS, commits=commits)
                written += size if commits else 0
            except confluent_kafka.KafkaException:
                self._writer = None  # whether it is committed is for both clusters to agree on
                time.sleep(0.2)


def _run(at: Field, *, records: int, faults: list[str]) -> None:
    load = _Load(at)
    at.start()
    for name in faults:
        writing = threading.Thread(target=load.write, args=(records // len(faults),))
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
    there, here = (
        _rows(at.clusters.servers["west"], at.topic),
        _rows(at.clusters.servers["east"], at.copy),
    )
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
        kafka.set_committed(at.clusters.servers["west"], at.group, at.topic, at_west)
        at.clusters.mirrored("offsets", at.group, "--yes", "--name", at.topic)
        at_east = kafka.committed(at.clusters.servers["east"], at.group, at.copy)
        for p in range(PARTITIONS):
            left = sum(row.offset >= at_west[p] for row in there[p])
            assert sum(row.offset >= at_east[p] for row in here[p]) == left, (turn, p)
        at.clusters.mirrored("offsets", at.group, "--yes", "--name", at.topic, "--back")
        again = kafka.committed(at.clusters.servers["west"], at.group, at.topic)
        for p in range(PARTITIONS):
            assert [r for r in there[p] if r.offset >= again[p]] == [
                r for r in there[p] if r.offset >= at_west[p]
            ]


def _under_faults(at: Field, *, records: int, faults: list[str]) -> None:
    begun = time.monotonic()
    _run(at, records=records, faults=faults)
    struck_s = time.monotonic() - begun
    _await_copying(at)
    process = at.live()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0, at.said()
    at.clusters.mirrored(*at.words, "--once")
    there, here = _check_equal(at)
    _check_moves(at, there, here)
    total = sum(map(len, there))
    assert total >= records
    print(f"{total} records, {struck_s:.0f} s, {at.lives} lives, faults {at.struck}")


@pytest.mark.faults
def test_records_are_copied_once_whatever_becomes_of_the_mirror(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    topic = west.create("orders", partitions=PARTITIONS)
    east.own(f"west.{topic}")
    at = Field(None, None, clusters, topic, random.Random(3))
    with _ended(at):
        _under_faults(at, records=20_000, faults=["mirror killed", "connections cut", "zombie"])


@pytest.mark.long
def test_a_million_records_are_copied_once_under_fifty_faults(tmp_path: Path) -> None:
    choose = random.Random(11)
    names = list(FAULTS)
    weights = [FAULTS[name][0] for name in names]
    faults = names + choose.choices(names, weights, k=FAULTS_MAX - len(names))
    with _field(tmp_path, 11) as at:
        _under_faults(at, records=RECORDS_MAX, faults=faults)
