"""Changelogs of windows keep everything while old input is processed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.clocks import at_once
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.progress import WATERMARK, OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.streams.worker.retention import RetentionGuard, WindowTopic
from headrace.topology import StreamsBuilder, TimeWindows, serdes

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
NOW = 20_000 * DAY
TOPIC = "test-per-minute-changelog"
PLANNED = str(3 * MINUTE + DAY)


def driver_at(now: int, **settings: object) -> TopologyTestDriver:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long).group_by_key()
    windows = TimeWindows(size=timedelta(minutes=1), grace=timedelta(minutes=2))
    stream.windowed_by(windows).count(store="per-minute")
    return TopologyTestDriver(builder.build(), settings, now=now, partitions=2)


def retention(driver: TopologyTestDriver) -> str:
    return driver.cluster.topics[TOPIC].config["retention.ms"]


def test_a_changelog_of_windows_is_deleted_a_day_after_its_store_forgets_them() -> None:
    """Trap 21."""
    driver = driver_at(NOW)
    driver.input("in").send("a", 1)
    assert retention(driver) == PLANNED
    assert driver.cluster.topics[TOPIC].config["cleanup.policy"] == "compact,delete"


def test_it_keeps_everything_from_before_the_first_old_window_is_written() -> None:
    driver = driver_at(NOW)
    seen: list[str] = []
    append = driver.cluster.append

    def watched(topic: str, *rest: object, **options: object) -> object:
        if topic == TOPIC:
            seen.append(retention(driver))
        return append(topic, *rest, **options)  # type: ignore[arg-type]

    driver.cluster.append = watched  # type: ignore[method-assign,assignment]
    driver.input("in").send("a", 1, timestamp=NOW - 400 * DAY)
    assert seen == ["-1"]
    assert retention(driver) == "-1"


def test_windows_that_lag_by_hours_are_left_to_the_planned_retention() -> None:
    driver = driver_at(NOW)
    driver.input("in").send("a", 1, timestamp=NOW - DAY // 4)
    assert retention(driver) == PLANNED


def test_it_gets_its_retention_back_when_every_task_has_come_to_the_present() -> None:
    driver = driver_at(NOW, **{"topics.check.interval.ms": 1000})
    records = driver.input("in")
    for partition in (0, 1):
        records.send("a", 1, timestamp=NOW - 400 * DAY, partition=partition)
    driver.advance(timedelta(seconds=2))
    records.send("a", 1, timestamp=NOW, partition=0)
    assert retention(driver) == "-1"
    driver.advance(timedelta(seconds=2))
    records.send("a", 1, timestamp=NOW, partition=1)
    driver.advance(timedelta(seconds=2))
    records.send("a", 1, timestamp=NOW, partition=1)
    assert retention(driver) == PLANNED


def test_a_restart_remembers_to_give_it_back() -> None:
    driver = driver_at(NOW, **{"topics.check.interval.ms": 1000})
    driver.input("in").send("a", 1, timestamp=NOW - 400 * DAY, partition=0)
    driver.crash()
    driver.advance(timedelta(seconds=2))
    driver.input("in").send("a", 1, timestamp=NOW, partition=0)
    driver.advance(timedelta(seconds=2))
    driver.input("in").send("a", 1, timestamp=NOW, partition=0)
    assert retention(driver) == PLANNED


# -- the guard by itself -------------------------------------------------------------------------

HOUR = 60 * MINUTE
LOG, IN = TopicPartition(TOPIC, 0), (TopicPartition("in", 0), TopicPartition("in", 1))
KEPT = WindowTopic(TOPIC, sub_topology=0, retention_ms=30 * HOUR, store_retention_ms=10 * HOUR)


@dataclass
class Admin:
    """Changes a topic's config, or is not allowed to."""

    asked: list[str] = field(default_factory=list)
    denied: bool = False

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        assert topic == TOPIC
        self.asked.append(config["retention.ms"])
        if self.denied:
            raise FatalClientError("not allowed")


@dataclass
class Spec:
    changelogs: dict[str, TopicPartition] = field(default_factory=lambda: {"per-minute": LOG})


@dataclass
class Task:
    """As much of one as is asked: the oldest window that its next commit writes."""

    oldest_ms: int
    spec: Spec = field(default_factory=Spec)

    def oldest_times(self) -> dict[str, int]:
        return {"per-minute": self.oldest_ms}


@dataclass
class Guarded:
    admin: Any = field(default_factory=Admin)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    log: EventLog = field(default_factory=EventLog)
    times: list[int | None] = field(default_factory=lambda: [NOW, NOW])
    """How far the tasks have come; None: nothing is committed."""
    values: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guard = RetentionGuard(
            self.admin,
            {TOPIC: KEPT},
            set(),
            lambda sub_topology: IN,
            lambda places, within_s: {
                place: (
                    None
                    if time is None
                    else CommittedOffset(1, OffsetMetadata(time, self.values).encode())
                )
                for place, time in zip(places, self.times, strict=True)
            },
            60,
            at_once,
            self.clock,
            self.log,
        )

    def protect(self, *, age_ms: int) -> list[str]:
        task: Any = Task(NOW - age_ms)
        self.guard.protect(task)
        return list(self.admin.asked)

    def restore_retention(self, *owned: int) -> list[str]:
        self.clock.pass_ms(MINUTE)
        self.guard.restore_retention(owned)
        return list(self.admin.asked[1:])


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


def test_half_of_what_a_topic_keeps_beyond_its_store_is_left_for_clocks(guarded: Guarded) -> None:
    """10 hours are the store's, and 10 of the other 20 the slack."""
    assert guarded.protect(age_ms=20 * HOUR) == []
    assert guarded.protect(age_ms=20 * HOUR + 1) == ["-1"]


def test_it_is_given_back_once_all_are_within_the_slack_of_the_present(guarded: Guarded) -> None:
    guarded.protect(age_ms=400 * DAY)
    guarded.times = [NOW + MINUTE, NOW + MINUTE - 10 * HOUR - 1]
    assert guarded.restore_retention(0) == []
    guarded.times = [NOW + 2 * MINUTE, NOW + 2 * MINUTE - 10 * HOUR]
    assert guarded.restore_retention(0) == [str(30 * HOUR)]


def test_the_watermark_of_a_repartition_topic_is_its_time(guarded: Guarded) -> None:
    """One record of now is there already, while windows of long ago are open."""
    guarded.protect(age_ms=400 * DAY)
    guarded.values = {WATERMARK: NOW - 30 * DAY}
    assert guarded.restore_retention(0) == []
    guarded.values = {WATERMARK: NOW}
    assert guarded.restore_retention(0) == [str(30 * HOUR)]


@pytest.mark.parametrize("nothing", [None, -1])
def test_a_partition_without_a_record_is_not_waited_for(
    guarded: Guarded, nothing: int | None
) -> None:
    guarded.protect(age_ms=400 * DAY)
    guarded.times = [NOW, nothing]
    assert guarded.restore_retention(0) == [str(30 * HOUR)]


def test_one_worker_alone_gives_it_back(guarded: Guarded) -> None:
    """Who has the first task: others may not know yet that it was lifted again."""
    guarded.protect(age_ms=400 * DAY)
    assert guarded.restore_retention() == []
    assert guarded.restore_retention(1) == []
    assert guarded.restore_retention(0, 1) == [str(30 * HOUR)]


def test_what_could_not_be_given_back_is_given_back_later(guarded: Guarded) -> None:
    guarded.protect(age_ms=400 * DAY)
    guarded.admin.denied = True
    assert guarded.restore_retention(0) == [str(30 * HOUR)]
    guarded.admin.denied = False
    assert guarded.restore_retention(0) == [str(30 * HOUR)] * 2
    assert guarded.restore_retention(0) == [str(30 * HOUR)] * 2
    events = [event["event"] for event in guarded.log.events]
    assert events == ["retention_suspended", "retention_not_restored", "retention_restored"]
    suspended, not_given_back, _ = guarded.log.events
    assert "Old input creates windows older" in suspended["advice"]
    assert "It is tried again" in not_given_back["advice"]


def test_what_may_not_be_lifted_is_asked_for_once(guarded: Guarded) -> None:
    """Each commit with old windows would wait for the same answer."""
    guarded.admin.denied = True
    for _ in range(3):
        assert guarded.protect(age_ms=400 * DAY) == ["-1"]
    assert [event["event"] for event in guarded.log.events] == ["retention_not_suspended"]


# -- old rows that come while a retention is given back ------------------------------------------


@dataclass
class Later:
    """A background whose jobs the test runs; `meanwhile` is called between their calls."""

    guarded: Guarded
    jobs: list[Any] = field(default_factory=list)
    takes: bool = True

    def __call__(self, job: Any) -> bool:
        if self.takes:
            self.jobs.append(job)
        return self.takes

    def run(self) -> None:
        self.jobs.pop()()


@pytest.fixture
def later(guarded: Guarded) -> Later:
    later = Later(guarded)
    guarded.guard.background = later
    guarded.protect(age_ms=400 * DAY)
    guarded.restore_retention(0)
    return later


def events(guarded: Guarded) -> list[str]:
    return [event["event"] for event in guarded.log.events]


def test_old_rows_that_come_before_it_is_given_back_are_kept(
    guarded: Guarded, later: Later
) -> None:
    guarded.protect(age_ms=400 * DAY)
    later.run()
    assert guarded.admin.asked[-1] == "-1"
    assert guarded.guard.suspended == {TOPIC}
    assert "retention_restored" not in events(guarded)


@pytest.mark.parametrize("is_first", [True, False])
def test_old_rows_that_come_while_it_is_given_back_are_kept(
    guarded: Guarded, later: Later, is_first: bool
) -> None:
    """Whichever of the two calls reaches the cluster last."""
    alter = guarded.admin.alter_config

    def altered(topic: str, config: Mapping[str, str]) -> None:
        guarded.admin.alter_config = alter
        if is_first:
            alter(topic, config)
        guarded.protect(age_ms=400 * DAY)
        if not is_first:
            alter(topic, config)

    guarded.admin.alter_config = altered
    later.run()
    assert guarded.admin.asked[-1] == "-1"
    assert guarded.guard.suspended == {TOPIC}


def test_it_is_given_back_at_the_next_look_after_all(guarded: Guarded, later: Later) -> None:
    guarded.protect(age_ms=400 * DAY)
    later.run()
    guarded.restore_retention(0)
    later.run()
    assert guarded.admin.asked[-1] == str(30 * HOUR)
    assert guarded.guard.suspended == set()


def test_rows_that_are_not_old_do_not_hinder_it(guarded: Guarded, later: Later) -> None:
    guarded.protect(age_ms=0)
    later.run()
    assert guarded.admin.asked[-1] == str(30 * HOUR)
    assert events(guarded) == ["retention_suspended", "retention_restored"]


def test_a_background_that_is_busy_leaves_it_for_later(guarded: Guarded, later: Later) -> None:
    later.run()
    guarded.protect(age_ms=400 * DAY)
    later.takes = False
    guarded.restore_retention(0)
    later.takes = True
    guarded.restore_retention(0)
    later.run()
    assert guarded.guard.suspended == set()
