"""Runs a program twice, with the same commits: once in peace, and once with a disturbance of each.

What is read between two commits is read at once, and in one order, so that what goes wrong in
between or at a commit may change nothing: not a byte of what comes out, nor of the changelogs.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args
from unittest.mock import patch

from headrace.state.codec import partition_for_key
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.streams.testing.driver_topics import TestInput
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.worker import processing
from headrace.streams.worker.progress_guard import ProgressGuard
from headrace.topology import KeySerdeWarning, StreamsBuilder, TopologyError
from headrace.topology.processors.store import Store
from tests.reference.more_programs import Course, course_of, write
from tests.reference.recorder import committed

MAX_COMMITS = 1_000
DEAD = "dead-letters"
CONTINUE = {
    "processing.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": DEAD,
}
_TIMED = ("window", "session")
COMMIT_STEPS: tuple[CrashPoint, ...] = tuple(
    step for step in get_args(CrashPoint) if step not in ("records_restored", "restore_ended")
)


@dataclass(frozen=True)
class Setting:
    """How a program is run.

    Args:
        partitions: of every topic.
        caching: whether caches have their default size; else they have none.
        exactly_once: the guarantee.
        on_disk: where RocksDB is to be used.
    """

    partitions: int = 1
    caching: bool = False
    exactly_once: bool = True
    on_disk: str | None = None

    def apart(self, run: str) -> Setting:
        """The same with a directory of one of the runs."""
        return self if self.on_disk is None else replace(self, on_disk=f"{self.on_disk}/{run}")

    @property
    def settings(self) -> dict[str, object]:
        """The application's settings, without the serde that a program draws."""
        settings: dict[str, object] = {
            "processing.guarantee": "exactly_once_v2" if self.exactly_once else "at_least_once",
            "null.key.policy": "drop",
        }
        if not self.caching:
            settings["statestore.cache.max.bytes"] = 0
        return settings


SETTINGS = (
    Setting(),
    Setting(caching=True),
    Setting(partitions=3),
    Setting(partitions=3, caching=True),
    Setting(exactly_once=False),
    Setting(partitions=3, caching=True, exactly_once=False),
)


class Disturbance(NamedTuple):
    """What happens at a commit: before it, at one of its steps, or behind it."""

    when: str
    what: str


class Facts(NamedTuple):
    """What came of a run."""

    records: Mapping[TopicPartition, list[tuple[Any, ...]]]
    """Key, value, timestamp and headers of what was committed, by partition."""
    rows: Mapping[str, list[str]]
    """By store, with the classes of keys and values."""
    layouts: Mapping[str, str]
    """By store: how its rows lie on disk."""
    commits: int


Disturbances = Mapping[int, Disturbance]


def disturbances_of(seed: int, commits: int, setting: Setting) -> Disturbances:
    """Draw what happens at some of the commits, once at least."""
    rng = random.Random(f"disturbances {seed}")
    numbers = rng.sample(range(commits), min(commits, rng.randint(1, 3)))
    return {number: _drawn(rng, setting) for number in sorted(numbers)}


def _drawn(rng: random.Random, setting: Setting) -> Disturbance:
    if not setting.exactly_once:
        return Disturbance("behind", rng.choice(CLEAN))  # others may repeat records
    when = rng.choice(("before", "in", "behind"))
    if when == "in":
        keep = rng.choice(("with its disk", "without its disk"))
        return Disturbance(when, f"{rng.choice(COMMIT_STEPS)} {keep}")
    return Disturbance(when, rng.choice(tuple(BETWEEN)))


class Comparison(NamedTuple):
    """What was compared, and is equal."""

    happened: frozenset[Disturbance]
    held: frozenset[str]
    """How the stores lie on disk that had rows."""


def setting_of(seed: int) -> Setting:
    """Draw how a program is run: with caches and without, with one partition and with several."""
    return random.Random(f"setting {seed}").choice(SETTINGS)


def compare(seed: int, setting: Setting | None = None) -> Comparison | None:
    """Compare a run with a disturbed one.

    Args:
        seed: decides the program, its input and what happens.
        setting: None for one that the seed decides too.

    Returns:
        What was compared; None where the program is refused, or reads nothing.

    Raises:
        AssertionError: something differs; it says what, and what happened.
    """
    course, setting = course_of(seed), setting or setting_of(seed)
    try:
        peaceful = run(course, setting.apart("peaceful"), {})
    except TopologyError:
        return None
    if not peaceful.commits:
        return None
    drawn = disturbances_of(seed, peaceful.commits, setting)
    disturbed = run(course, setting.apart("disturbed"), drawn)
    differences = "\n".join(_differences(peaceful, disturbed))
    assert not differences, f"seed {seed}, {setting}, {drawn}:\n{differences}"
    held = {layout for store, layout in peaceful.layouts.items() if peaceful.rows[store]}
    return Comparison(frozenset(drawn.values()), frozenset(held))


def _differences(peaceful: Facts, disturbed: Facts) -> Iterator[str]:
    for place in sorted({*peaceful.records, *disturbed.records}):
        wanted, found = peaceful.records.get(place, []), disturbed.records.get(place, [])
        if wanted != found:
            yield f"{place}: {found} instead of {wanted}"
    for store, rows in peaceful.rows.items():
        others = disturbed.rows[store]
        if peaceful.layouts[store] in _TIMED:
            # What has expired is on the disk until it is swept, or is restored from the changelog.
            others = [row for row in others if row in rows]
        if others != rows:
            yield f"store {store}: {disturbed.rows[store]} instead of {rows}"


def run(course: Course, setting: Setting, disturbances: Disturbances) -> Facts:
    """Run a program, with what happens at its commits by their numbers."""
    with _nobody_choosing(), _driver(course, setting) as driver:
        commits = 0
        for batch in course.batches:
            for sent in batch:
                _send(driver, sent)
            while _has_committed(driver, commits, disturbances.get(commits)):
                commits += 1
                assert commits < MAX_COMMITS, "the program goes on and on"
        driver.run()  # rows that have expired are shown where no task runs
        return Facts(_records(driver.cluster), _rows(driver), _layouts(driver), commits)


@contextmanager
def _nobody_choosing() -> Iterator[None]:
    """Decide what nobody promises: which task goes first, and where records without a key go."""

    def in_order(tasks: Tasks) -> list[Task]:
        return sorted(dict.fromkeys(tasks._readers.values()), key=lambda task: task.id)

    def partition_of(_: MemoryCluster, __: str, key: bytes | None, count: int) -> int:
        return 0 if key is None else partition_for_key(key, count)

    with (
        patch.object(Tasks, "running", property(in_order)),
        # With chunks that grow, tasks would take turns in another way after a restart.
        patch.object(processing, "CHUNK_FIRST", 10_000),
        # A transaction takes less after an abort, and the rest would come in another turn.
        patch.object(ProgressGuard, "max_records", 10_000),
        patch.object(MemoryCluster, "_partition_of", partition_of),
    ):
        yield


@contextmanager
def _driver(course: Course, setting: Setting) -> Iterator[TopologyTestDriver]:
    builder = StreamsBuilder()
    write(course.program, builder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeySerdeWarning)
        driver = TopologyTestDriver(
            builder.build(),
            {
                **setting.settings,
                "default.key.serde": course.program.keys.default,
                "default.value.serde": course.program.values.default,
                **(CONTINUE if course.program.failing else {}),
            },
            partitions=setting.partitions,
            commit="manual",
            state_dir=setting.on_disk,
        )
    with driver:
        yield driver


def _send(driver: TopologyTestDriver, sent: Any) -> None:
    """Write a record that is to be read with the others of its batch."""
    if sent.topic not in driver.cluster.topics:
        return
    key, value = driver._names.read(sent.topic)
    quiet: TestInput[Any, Any] = TestInput(
        sent.topic,
        key,
        value,
        cluster=driver.cluster,
        run=lambda: None,
        now_ms=lambda: 0,
        step_ms=1,
    )
    quiet.send(sent.key, sent.value, timestamp=sent.timestamp, headers=sent.headers)


def _has_committed(driver: TopologyTestDriver, number: int, drawn: Disturbance | None) -> bool:
    """Process what is there and commit it; returns whether there was anything."""
    _process(driver, number)
    if drawn is not None and drawn.when == "before":
        BETWEEN[drawn.what](driver)
        _process(driver, number)
    before = _progress(driver)
    if drawn is not None and drawn.when == "in":
        point, _, disk = drawn.what.partition(" ")
        driver.crash(at=_step(point), keep=disk == "with its disk")
    _commit(driver)
    if _progress(driver) == before:
        _process(driver, number)  # it died before the transaction ended
        _commit(driver)
    driver._worker.crash_at = None  # not every commit has all steps
    moved: bool = _progress(driver) != before
    if drawn is not None and drawn.when == "behind":
        BETWEEN[drawn.what](driver)
    return moved


def _process(driver: TopologyTestDriver, number: int) -> None:
    driver.cluster.random.seed(number)
    driver.run()


def _commit(driver: TopologyTestDriver) -> None:
    driver._worker.present().request_commit()
    driver._worker.turn()


def _progress(driver: TopologyTestDriver) -> Any:
    """The inputs' offsets: a commit of no record changes none."""
    offsets = driver.cluster.offsets.get("test", {})
    return {place: committed.offset for place, committed in offsets.items()}


def _step(name: str) -> CrashPoint:
    return next(step for step in COMMIT_STEPS if step == name)


# -- what happens between commits ------------------------------------------------------------


def _kill(driver: TopologyTestDriver) -> None:
    driver.crash(keep=True)


def _lose(driver: TopologyTestDriver) -> None:
    driver.crash(keep=False)


def _die_while_restoring(driver: TopologyTestDriver) -> None:
    driver.crash(keep=False)
    driver.crash(at="records_restored", keep=True)


def _rebalance(driver: TopologyTestDriver, step: int = 1) -> None:
    """The group takes topics' partitions, and gives them back; what was processed is committed."""
    worker, places = driver._worker.present(), _lead_places(driver, step)
    worker.on_revoked(places)
    worker.on_assigned(places)


def _lose_partitions(driver: TopologyTestDriver) -> None:
    """The group has given the partitions to others, who give them back."""
    worker, places = driver._worker.present(), _lead_places(driver)
    worker.on_lost(places)
    worker.on_assigned(places)


def _lead_places(driver: TopologyTestDriver, step: int = 1) -> list[TopicPartition]:
    """Those that the group shares out, as far as tasks have them."""
    leads = driver._worker.present().tasks.subscribed_topics[::step]
    owned = {place for task in driver._worker.present().tasks.running for place in task.inputs}
    return [p for t in leads for p in driver.cluster.partitions(t) if p in owned]


BETWEEN: Mapping[str, Callable[[TopologyTestDriver], None]] = {
    "abort": TopologyTestDriver.abort,
    "clean restart": TopologyTestDriver.restart,
    "rebalance": _rebalance,
    "rebalance of every other topic": partial(_rebalance, step=2),
    "kill": _kill,
    "loss of the disk": _lose,
    "loss of the disk and a kill while it is restored": _die_while_restoring,
    "loss of the partitions": _lose_partitions,
}

CLEAN = ("clean restart", "rebalance", "rebalance of every other topic")
"""What ends with a commit, so that nothing is done again under any guarantee."""


# -- what came of it -------------------------------------------------------------------------


def _records(cluster: MemoryCluster) -> dict[TopicPartition, list[tuple[Any, ...]]]:
    found = {
        place: [
            (m.key(), m.value(), m.timestamp()[1], _headers(m)) for m in committed(cluster, place)
        ]
        for topic in cluster.topics
        for place in cluster.partitions(topic)
    }
    for place, records in found.items():
        if place.topic == DEAD:
            records.sort(key=repr)  # several tasks write them, in any order
    return found


def _headers(message: Any) -> Any:
    """All that do not depend on the run.

    In a stack trace the first call of a function has one more frame, aborted records take offsets
    in repartition topics, and commits are numbered from a random number.
    """
    left_out = ("__streams.errors.stacktrace", "__streams.errors.offset", "headrace.commit.id")
    return [header for header in message.headers() or () if header[0] not in left_out]


def _rows(driver: TopologyTestDriver) -> dict[str, list[str]]:
    return {
        store.name: [repr(row) for row in driver.store(store.name).rows()]
        for store in _stores(driver)
    }


def _layouts(driver: TopologyTestDriver) -> dict[str, str]:
    return {store.name: store.spec.layout for store in _stores(driver)}


def _stores(driver: TopologyTestDriver) -> list[Store]:
    return [store for plan in driver._plans for store in plan.program.sub_topology.stores]


__all__ = [
    "BETWEEN",
    "COMMIT_STEPS",
    "SETTINGS",
    "Comparison",
    "compare",
    "disturbances_of",
    "setting_of",
]
