"""Jobs whose keys are fields of the values, so that records go through a repartition topic."""

from __future__ import annotations

from datetime import timedelta

import orjson

from benchmarks.jobs.job import WINDOW_MS, Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import Shape
from benchmarks.jobs.sums import bookings
from benchmarks.jobs.windows import tumbling_input
from headrace import TimeWindows
from headrace.topology import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def repartitioned_sum(source: str, output: str) -> Topology:
    """Add up numbers by a field of the records."""
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


def repartitioned_bookings(shape: Shape) -> Dataset:
    """Generate bookings without a key, and with the account in the value."""
    dataset = bookings(shape)
    rows: list[Record] = [
        (None, b'{"account":%s,%s' % (key, value[1:]), time)
        for key, value, time in dataset.inputs["in"]
    ]
    last = {
        orjson.loads(key).encode(): serdes.long.serialize(orjson.loads(total))
        for key, total in dataset.expected.last.items()
    }
    return Dataset({"in": rows}, Expected(last, shape.records))


def sum_by_account(accounts: int, records: int) -> Job:
    """Return the job with a number of keys."""
    title = f"sum of {accounts:,} keys after select_key"
    shapes = (Shape("repartitioned", records, accounts),)
    return Job(
        f"repartitioned_{accounts}",
        title,
        repartitioned_bookings,
        repartitioned_sum,
        shapes,
        kind="repartitioned_sum",
    )


def repartitioned_windows(source: str, output: str) -> Topology:
    """Add up by ten seconds and a field of the records.

    With less grace, `stream.time=fastest` would drop records of a backlog as late.
    """
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .select_key(lambda _, reading: reading["sensor"])
        .group_by_key(name="by-sensor")
        .windowed_by(TimeWindows(size=timedelta(milliseconds=WINDOW_MS), grace=timedelta(days=1)))
        .aggregate(lambda: 0, lambda _, reading, total: total + reading["amount"], store="sums")
        .to_stream()
        .to(output)
    )
    return builder.build()


def repartitioned_readings(shape: Shape) -> Dataset:
    """Generate readings without a key, and with the sensor in the value."""
    dataset = tumbling_input(shape)
    rows: list[Record] = [
        (None, b'{"sensor":%s,%s' % (key, value[1:]), time)
        for key, value, time in dataset.inputs["in"]
    ]
    return Dataset({"in": rows}, dataset.expected)


def repartitioned_last_windows(source: str, output: str) -> Topology:
    """Keep and forward the last value of each key and hour after a repartition topic."""
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


REPARTITIONED_WINDOWS = Job(
    "repartitioned_windows",
    "windows of 10 s after select_key",
    repartitioned_readings,
    repartitioned_windows,
    (Shape("few", 300_000, 1_000, rows=0.2),),
    kind="repartitioned_windows",
)
