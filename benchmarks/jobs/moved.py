"""A running sum per key where the keys are taken out of the records, so that they are moved."""

from __future__ import annotations

from functools import partial

import orjson

from benchmarks.jobs.job import Expected, Job, Made, Record, topic
from benchmarks.jobs.sums import bookings
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
