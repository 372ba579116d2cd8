"""W2, a running sum per key: with few keys, many, and more than a commit's caches hold."""

from __future__ import annotations

import orjson

from benchmarks.jobs.job import Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import NOTES, START_MS, Ranges, Shape
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

ACCOUNTS = Shape("100k", 1_000_000, 100_000)


def bookings(shape: Shape) -> Dataset:
    """Generate bookings on accounts."""
    rng = shape.generator()
    totals: dict[bytes, int] = {}
    rows: list[Record] = []
    keys = [b'"account-%07d"' % i for i in range(shape.keys)]
    notes = shape.notes(rng)
    drawn = shape.draw_keys(rng, shape.records)
    amounts = rng.choices(range(1, 1000), k=shape.records)
    for number, (account, amount) in enumerate(zip(drawn, amounts, strict=True)):
        key = keys[account]
        rows.append((key, b'{"amount":%d%b}' % (amount, notes[number % NOTES]), START_MS + number))
        totals[key] = totals.get(key, 0) + amount
    last = {key: orjson.dumps(total) for key, total in totals.items()}
    return Dataset({"in": rows}, Expected(last, shape.records))


def running_sum(source: str, output: str) -> Topology:
    """Add up the amounts of each key."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .group_by_key()
        .aggregate(lambda: 0, lambda _, booking, total: total + booking["amount"], store="sums")
        .to_stream()
        .to(output)
    )
    return builder.build()


JOBS = (
    Job(
        "sum",
        "W2 sum per key",
        bookings,
        running_sum,
        (
            ACCOUNTS,
            Shape("zipf", 1_000_000, 100_000, skew=1.0),
            Shape("1m", 1_000_000, 1_000_000),
            Shape("10k", 1_000_000, 10_000),
            Shape("notes", 400_000, 100_000, value_bytes=500),
        ),
        Ranges(1_000_000, (100, 1_000_000), value_bytes=300),
        kind="sum",
    ),
)
