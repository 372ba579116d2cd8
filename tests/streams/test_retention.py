"""Changelogs of windows keep everything while old input is processed."""

from __future__ import annotations

from datetime import timedelta

from streams.testing import TopologyTestDriver
from topology import StreamsBuilder, TimeWindows, serdes

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
