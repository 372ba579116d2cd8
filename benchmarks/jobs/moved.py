"""Jobs whose keys are taken out of the values, so that records go through a repartition topic."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import orjson

from benchmarks.jobs.job import Expected, Job, Made, Record, topic
from benchmarks.jobs.sums import bookings
from benchmarks.jobs.windows import SIZE_MS, tumbling_input
from headrace import TimeWindows
from headrace.topology import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def moved_sum(source: str, output: str) -> Topology:
    """Add up numbers by keys that are taken out of the records."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .select_key(lambda _, booking: booking["account"])
        .map_values(lambda booking: booking["amount"])
        .group_by_key(key=serdes.string, value=serdes.long, name="by-account")
        .reduce(
            lambda total, amount: total + amount,
            merger=lambda _, one, other: one + other,
            store="sums",
        )
        .to_stream()
        .to(output)
    )
    return builder.build()


def moved_bookings(count: int, accounts: int) -> Made:
    """Bookings that have no key, and their accounts in their values."""
    made = bookings(count, accounts)
    rows: list[Record] = [
        (None, b'{"account":%s,%s' % (key, value[1:]), time)
        for key, value, time in made.inputs["in"]
    ]
    last = {
        orjson.loads(key).encode(): serdes.long.serialize(orjson.loads(total))
        for key, total in made.expected.last.items()
    }
    return Made({"in": rows}, Expected(last, count))


def job_of(accounts: int, records: int) -> Job:
    """The job with so many keys."""
    make = partial(moved_bookings, accounts=accounts)
    title = f"sum of {accounts:,} keys behind select_key"
    return Job(f"moved_{accounts}", title, records, make, moved_sum, kind="moved_sum")


def moved_windows(source: str, output: str) -> Topology:
    """Add up by ten seconds and a key that is taken out of the records.

    With less grace, `stream.time=fastest` would drop records of a backlog as late.
    """
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .select_key(lambda _, reading: reading["sensor"])
        .group_by_key(name="by-sensor")
        .windowed_by(TimeWindows(size=timedelta(milliseconds=SIZE_MS), grace=timedelta(days=1)))
        .aggregate(lambda: 0, lambda _, reading, total: total + reading["amount"], store="sums")
        .to_stream()
        .to(output)
    )
    return builder.build()


def moved_readings(count: int) -> Made:
    """Readings that have no key, and their sensors in their values."""
    made = tumbling_input(count)
    rows: list[Record] = [
        (None, b'{"sensor":%s,%s' % (key, value[1:]), time)
        for key, value, time in made.inputs["in"]
    ]
    return Made({"in": rows}, made.expected)


def moved_last_windows(source: str, output: str) -> Topology:
    """Keep the last value of each key and hour behind a repartition topic, and write it on."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .select_key(lambda key, _: key[::-1])
        .group_by_key(name="by-key")
        .windowed_by(TimeWindows(size=timedelta(hours=1)))
        .reduce(lambda _, value: value, store="last")
        .to_stream()
        .to(output)
    )
    return builder.build()


MOVED_WINDOWS = Job(
    "moved_windows",
    "windows of 10 s behind select_key",
    300_000,
    moved_readings,
    moved_windows,
    kind="moved_windows",
)
