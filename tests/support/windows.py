"""Windowed steps in tests: records with times, results by window, and what a right answer is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KGroupedStream, KTable, StreamsBuilder, Windowed, serdes

Group = KGroupedStream[str, str]
Table = KTable[Windowed[str], Any]


def ms(count: int) -> timedelta:
    """So many milliseconds."""
    return timedelta(milliseconds=count)


class Sent(NamedTuple):
    """A record to send."""

    key: str | None
    value: str | None
    time: int


class Got(NamedTuple):
    """A result: the key, the window's start and end, the value and the timestamp."""

    key: str
    start: int
    end: int
    value: Any
    time: int


def driver_of(step: Callable[[Group], Table], **options: Any) -> TopologyTestDriver:
    """A driver of ``in -> group by key -> step -> out``; keys and values are strings."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    step(stream.group_by_key()).to_stream().to("out")
    settings = {"default.value.serde": "string", **options.pop("settings", {})}
    return TopologyTestDriver(builder.build(), settings, **options)


def send(driver: TopologyTestDriver, records: Iterable[tuple[Any, Any, int]]) -> None:
    """Send keys, values and times."""
    for key, value, time in records:
        driver.input("in").send(key, value, timestamp=time)


def got(driver: TopologyTestDriver, topic: str = "out") -> list[Got]:
    """What has come out so far, of all partitions."""
    return [
        Got(record.key.key, *record.key.window, record.value, record.timestamp)
        for record in driver.output(topic).read_all()
    ]


def results(step: Callable[[Group], Table], *records: tuple[Any, Any, int]) -> list[Got]:
    """What comes out of a step for these records, committed one by one."""
    with driver_of(step) as driver:
        send(driver, records)
        return got(driver)


def joined(windows: Any, **options: Any) -> Callable[[Group], Table]:
    """A step that appends the values in each window, so that their order can be seen."""

    def step(group: Group) -> Table:
        windowed = group.windowed_by(windows, **options)
        return windowed.aggregate(
            str, lambda _, value, total: total + (value or "0"), store="s", value=serdes.string
        )

    return step
